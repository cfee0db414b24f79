// @ts-check
// The media socket's bytes: rcdp wire version 2, as docs/wire.md has them.
//
// A video message is a header length and a payload length (u32, big-endian), a JSON header, and one
// encoded frame. Text messages are `{type, payload}`.

/**
 * One encoded frame.
 * @typedef {object} Packet
 * @property {number} sequence rises within one socket; gaps are frames that were replaced by newer ones
 * @property {number} geometryEpoch
 * @property {number} codecEpoch rises when the encoder is replaced; its first frame is a keyframe
 * @property {number} width true width; the coded one may be a column wider
 * @property {number} height
 * @property {number} capturedAt microseconds on the server's media clock
 * @property {string} codec
 * @property {boolean} keyframe
 * @property {Uint8Array<ArrayBuffer>} payload
 */

/** Limits of the contract; what is beyond them is not a packet. */
const MAX_HEADER = 1 << 20;
const MAX_PAYLOAD = 64 << 20;

/** First byte of an audio message: the R of its magic `RAU2`. A header length never starts with it. */
const AUDIO = 0x52;

const utf8 = new TextDecoder("utf-8", { fatal: true });

/**
 * @param {ArrayBuffer} message
 * @returns {Packet | null} null for what is not video
 * @throws {Error} when the message is none this version knows
 */
export function parsePacket(message) {
  const view = new DataView(message);
  if (view.byteLength < 8) throw new Error(`a media message of ${view.byteLength} bytes`);
  if (view.getUint8(0) === AUDIO) return null;
  const headerLength = view.getUint32(0);
  const payloadLength = view.getUint32(4);
  if (
    headerLength > MAX_HEADER ||
    payloadLength > MAX_PAYLOAD ||
    8 + headerLength + payloadLength !== view.byteLength
  ) {
    throw new Error(`lengths ${headerLength} and ${payloadLength} in a message of ${view.byteLength} bytes`);
  }
  const header = JSON.parse(utf8.decode(new Uint8Array(message, 8, headerLength)));
  if (header.direction !== "video") return null;
  const descriptor = header.message;
  return {
    sequence: descriptor.sequence,
    geometryEpoch: descriptor.geometry_epoch,
    codecEpoch: descriptor.codec_epoch,
    width: descriptor.width_px,
    height: descriptor.height_px,
    capturedAt: descriptor.capture_timestamp_us,
    codec: descriptor.codec,
    keyframe: descriptor.keyframe === true,
    payload: new Uint8Array(message, 8 + headerLength, payloadLength),
  };
}

/**
 * The WebCodecs codec string of a keyframe, or null when the frame cannot start a decoder.
 * @param {Packet} packet
 */
export function codecString(packet) {
  switch (packet.codec) {
    case "h264": {
      const sps = findSps(packet.payload);
      // ISO/IEC 14496-15 §E.3: profile_idc, constraint flags and level_idc, in hexadecimal.
      return sps && `avc1.${[...sps.subarray(1, 4)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    }
    case "vp8":
      return "vp8";
    default:
      return null;
  }
}

/**
 * The first sequence parameter set of an Annex B access unit. Delimiters and long SEI may precede it.
 * @param {Uint8Array} unit
 */
function findSps(unit) {
  for (let i = 0; i + 6 < unit.length; i++) {
    if (unit[i] !== 0 || unit[i + 1] !== 0 || unit[i + 2] !== 1) continue;
    const type = unit[i + 3] & 0x1f;
    if (type === 7) return unit.subarray(i + 3);
    if (type === 1 || type === 5) return null; // picture data: parameter sets come before it
    i += 3;
  }
  return null;
}
