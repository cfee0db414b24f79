// libx264 behind an interface of ours that does not change with its version.
//
// The layout of x264_param_t belongs to the header the system has, so C fills it in and Rust only
// ever sees the structures below.

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x264.h>

// Mirrored in x264.rs.
typedef struct {
    int32_t width;   // even
    int32_t height;  // even
    int32_t fps;     // the highest
    int32_t level;   // 40 for level 4.0
    int32_t threads; // slices that are encoded at the same time
} sp_settings;

// Mirrored in x264.rs.
typedef struct {
    const uint8_t *luma;
    const uint8_t *chroma;  // interleaved
    const uint8_t *mb_info; // one byte a macroblock, 1 where nothing changed; or null
    int64_t pts;
    int32_t idr;
    int32_t search; // 0 for the narrow motion search, else the range in pixels of the wide one
    int32_t quantizer;
} sp_picture;

// Mirrored in x264.rs. Good until the next call.
typedef struct {
    const uint8_t *head;
    size_t head_len;
    const uint8_t *tail;
    size_t tail_len;
    int32_t keyframe;
} sp_output;

typedef struct {
    x264_t *encoder;
    x264_param_t param;
    char message[160];
} sp_x264;

// Keeps the first complaint, which is the one that names the cause.
static void keep_message(void *private, int level, const char *format, va_list args) {
    sp_x264 *self = private;
    if (level > X264_LOG_ERROR || self->message[0])
        return;
    vsnprintf(self->message, sizeof self->message, format, args);
    self->message[strcspn(self->message, "\n")] = 0;
}

int32_t sp_x264_is_open(const sp_x264 *self) { return self->encoder != NULL; }

const char *sp_x264_message(const sp_x264 *self) { return self->message; }

void sp_x264_close(sp_x264 *self) {
    if (self && self->encoder)
        x264_encoder_close(self->encoder);
    free(self);
}

// Null only when memory is out; when x264 refused the settings, there is a message instead.
sp_x264 *sp_x264_open(const sp_settings *settings) {
    sp_x264 *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    x264_param_t *p = &self->param;
    if (x264_param_default_preset(p, "ultrafast", "zerolatency") < 0)
        return self;
    p->pf_log = keep_message;
    p->p_log_private = self;
    p->i_log_level = X264_LOG_ERROR;
    p->i_threads = settings->threads;
    p->b_sliced_threads = settings->threads > 1;
    p->i_width = settings->width;
    p->i_height = settings->height;
    p->i_csp = X264_CSP_NV12;
    p->i_level_idc = settings->level;
    p->i_fps_num = settings->fps;
    p->i_fps_den = 1;
    // Not b_vfr_input: it holds every frame back until the next one has said how long it lasted.
    p->b_vfr_input = 0;

    p->i_keyint_max = X264_KEYINT_MAX_INFINITE;
    p->i_scenecut_threshold = 0;
    p->i_bframe = 0;
    p->i_frame_reference = 1;
    p->b_repeat_headers = 1;
    p->b_annexb = 1;
    p->b_aud = 0;

    p->vui.b_fullrange = 0;
    p->vui.i_colorprim = 1;
    p->vui.i_transfer = 1;
    p->vui.i_colmatrix = 6; /* Matrix::Bt601 says why */

    p->analyse.b_mb_info = 1;
    p->analyse.i_me_method = X264_ME_DIA;

    // Every frame brings its own quantizer. x264 clips those to what these three imply: 23 for
    // P-frames, 17 for I-frames, 48 for the B-frames there are none of.
    p->rc.i_rc_method = X264_RC_CQP;
    p->rc.i_qp_constant = 23;
    p->rc.f_ip_factor = 2.f;
    p->rc.f_pb_factor = 7.13f;

    if (x264_param_apply_profile(p, "baseline") < 0)
        return self;
    self->encoder = x264_encoder_open(p);
    if (self->encoder)
        x264_encoder_parameters(self->encoder, p);
    return self;
}

// Returns 0 when `out` is filled, 1 when nothing came out, negative on failure.
int32_t sp_x264_encode(sp_x264 *self, const sp_picture *picture, sp_output *out) {
    memset(out, 0, sizeof *out);
    if (!self->encoder)
        return -1;
    self->message[0] = 0;

    x264_param_t *p = &self->param;
    p->analyse.i_me_method = picture->search ? X264_ME_UMH : X264_ME_DIA;
    p->analyse.i_me_range = picture->search ? picture->search : 16;
    if (x264_encoder_reconfig(self->encoder, p) < 0)
        return -2;

    x264_picture_t in, encoded;
    x264_picture_init(&in);
    in.i_type = picture->idr ? X264_TYPE_IDR : X264_TYPE_AUTO;
    in.i_qpplus1 = picture->quantizer + 1;
    in.i_pts = picture->pts;
    in.img.i_csp = X264_CSP_NV12;
    in.img.i_plane = 2;
    in.img.plane[0] = (uint8_t *)picture->luma;
    in.img.plane[1] = (uint8_t *)picture->chroma;
    in.img.i_stride[0] = p->i_width;
    in.img.i_stride[1] = p->i_width;
    in.prop.mb_info = (uint8_t *)picture->mb_info;

    x264_nal_t *nals;
    int count;
    int size = x264_encoder_encode(self->encoder, &nals, &count, &in, &encoded);
    if (size < 0)
        return -3;
    if (size == 0)
        return 1;

    // All NAL units lie one after the other. The SEI in which x264 introduces itself, about 700
    // bytes in front of the first IDR, is left out: what precedes it and what follows are given.
    out->head = nals[0].p_payload;
    out->tail = nals[0].p_payload + size;
    for (int i = 0; i < count; i++) {
        if (nals[i].i_type == NAL_SEI) {
            out->tail = nals[i].p_payload + nals[i].i_payload;
            size -= nals[i].i_payload;
            break;
        }
        out->head_len += nals[i].i_payload;
    }
    out->tail_len = size - out->head_len;
    out->keyframe = encoded.b_keyframe;
    return 0;
}
