// @ts-check
// The media protocol's bytes: rcdp wire version 2, as docs/wire.md has them.
//
// On a WebSocket a message is a message. On QUIC each frame has a stream of its own, and control messages
// follow each other on one stream, each behind its lengths.
//
// A video message is a header length and a payload length (u32, big-endian), a JSON header, and one
// encoded frame. Text messages are `{type, payload}`.

/**
 * One encoded frame.
 * @typedef {object} Packet
 * @property {string} sessionId
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
    sessionId: descriptor.session_id,
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
 * What stands in front of a frame on a stream of its own.
 * @typedef {object} FrameHeader
 * @property {number} id counts what this viewer was sent
 * @property {boolean} keyframe
 * @property {number} total bytes of the packet behind it
 */

/** Bytes a `FrameHeader` takes. */
export const FRAME_HEADER = 24;

/**
 * @param {Uint8Array} bytes at least `FRAME_HEADER`
 * @returns {FrameHeader}
 * @throws {Error} when they are none
 */
export function parseFrameHeader(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const total = view.getUint32(20);
  if (view.getUint32(0) !== FRAME_MAGIC || view.getUint8(4) !== 2 || view.getUint16(8) !== 1 || total > 8 + MAX_HEADER + MAX_PAYLOAD) {
    throw new Error("a frame that begins as none does");
  }
  // A viewer that is sent a thousand frames a second reaches the end of whole numbers in 285,000 years.
  return { id: Number(view.getBigUint64(12)), keyframe: (view.getUint8(5) & 1) === 1, total };
}

/** `RVD2` */
const FRAME_MAGIC = 0x52564432;

/** A control message as a stream carries it. @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export function framed(text) {
  const body = new TextEncoder().encode(text);
  const message = new Uint8Array(8 + body.length);
  new DataView(message.buffer).setUint32(0, body.length);
  message.set(body, 8);
  return message;
}

/** Takes control messages out of the pieces of a stream. */
export class ControlReader {
  #buffer = new Uint8Array(0);

  /** @param {Uint8Array} piece @returns {string[]} what is whole now @throws {Error} when it is none */
  push(piece) {
    const joined = new Uint8Array(this.#buffer.length + piece.length);
    joined.set(this.#buffer);
    joined.set(piece, this.#buffer.length);
    const view = new DataView(joined.buffer);
    const messages = [];
    let at = 0;
    while (joined.length - at >= 8) {
      const [header, payload] = [view.getUint32(at), view.getUint32(at + 4)];
      if (header > MAX_HEADER || payload > MAX_PAYLOAD) throw new Error(`lengths ${header} and ${payload} on the control stream`);
      if (joined.length - at < 8 + header + payload) break;
      // One with a payload is no control message, and of a later version.
      if (payload === 0) messages.push(utf8.decode(joined.subarray(at + 8, at + 8 + header)));
      at += 8 + header + payload;
    }
    this.#buffer = joined.slice(at);
    return messages;
  }
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
