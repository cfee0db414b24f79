// @ts-check
// Frames that only the sender and this page can read, whatever lies between: SFrame (RFC 9605), as
// docs/wire.md has it.

/** @typedef {import("./wire.js").Packet} Packet */

/** AES_256_GCM_SHA512_128 (RFC 9605 §4.5). */
const SUITE = 5;
const KEY_BITS = 256;
const NONCE_BYTES = 12;

/** Senders that are remembered; the one unheard of for longest goes. */
const SENDERS = 16;

const utf8 = new TextEncoder();

/** Opens what was sealed with one key. */
export class Opener {
  #base;
  /** By key id, the one heard of last at the end. @type {Map<bigint, Sender>} */
  #senders = new Map();

  /** @param {string} key as it stands in the address @throws {Error} when it is none */
  constructor(key) {
    if (!/^[0-9a-f]{64}$/.test(key)) throw new Error("no media key");
    const bytes = Uint8Array.from(key.match(/../g) ?? [], (pair) => parseInt(pair, 16));
    this.#base = crypto.subtle.importKey("raw", bytes, "HKDF", false, ["deriveBits", "deriveKey"]);
  }

  /**
   * The packet with its picture in the open.
   * @param {Packet} packet
   * @returns {Promise<Packet>}
   * @throws {Error} when it was sealed with another key, was altered, or came before
   */
  async open(packet) {
    const { keyId, counter, length } = parseHeader(packet.payload);
    let sender = this.#senders.get(keyId);
    if (sender && counter <= sender.last) throw new Error("a frame that came before");
    sender ??= await derive(await this.#base, keyId);
    const header = packet.payload.subarray(0, length);
    const picture = await crypto.subtle.decrypt(
      { name: "AES-GCM", iv: nonce(sender.salt, counter), additionalData: joined(header, metadata(packet)) },
      sender.key,
      packet.payload.subarray(length),
    );
    sender.last = counter;
    // Only now: a forged key id may not push out one that is in use.
    this.#senders.delete(keyId);
    this.#senders.set(keyId, sender);
    if (this.#senders.size > SENDERS) this.#senders.delete([...this.#senders.keys()][0]);
    return { ...packet, payload: new Uint8Array(picture) };
  }
}

/** @typedef {{key: CryptoKey, salt: Uint8Array<ArrayBuffer>, last: bigint}} Sender */

/**
 * RFC 9605 §4.4.2.
 * @param {CryptoKey} base
 * @param {bigint} keyId
 * @returns {Promise<Sender>}
 */
async function derive(base, keyId) {
  const tail = new Uint8Array(10);
  new DataView(tail.buffer).setBigUint64(0, keyId);
  tail[9] = SUITE;
  /** @param {string} label */
  const parameters = (label) => ({
    name: "HKDF",
    hash: "SHA-512",
    salt: new Uint8Array(),
    info: joined(utf8.encode(label), tail),
  });
  const key = await crypto.subtle.deriveKey(
    parameters("SFrame 1.0 Secret key "),
    base,
    { name: "AES-GCM", length: KEY_BITS },
    false,
    ["decrypt"],
  );
  const salt = await crypto.subtle.deriveBits(parameters("SFrame 1.0 Secret salt "), base, NONCE_BYTES * 8);
  return { key, salt: new Uint8Array(salt), last: -1n };
}

/** @param {Uint8Array<ArrayBuffer>} salt @param {bigint} counter */
function nonce(salt, counter) {
  const value = salt.slice();
  const low = new DataView(value.buffer, NONCE_BYTES - 8);
  low.setBigUint64(0, low.getBigUint64(0) ^ counter);
  return value;
}

/**
 * The header of a ciphertext (RFC 9605 §4.3): one byte that says how long key id and counter are, or what
 * they are when they are small.
 * @param {Uint8Array} payload
 */
function parseHeader(payload) {
  const config = payload[0] ?? 0;
  let length = 1;
  /** @param {number} bits */
  const field = (bits) => {
    if (!(bits & 8)) return BigInt(bits & 7);
    const end = length + (bits & 7) + 1;
    let value = 0n;
    for (; length < end; length++) value = (value << 8n) | BigInt(payload[length] ?? 0);
    return value;
  };
  const keyId = field(config >> 4);
  const counter = field(config & 15);
  return { keyId, counter, length };
}

/** What of a packet's header is authenticated. @param {Packet} packet */
function metadata(packet) {
  const session = utf8.encode(packet.sessionId);
  const numbers = new DataView(new ArrayBuffer(30));
  numbers.setBigUint64(1, BigInt(packet.sequence));
  numbers.setBigUint64(9, BigInt(packet.geometryEpoch));
  numbers.setUint32(17, packet.codecEpoch);
  numbers.setUint32(21, packet.width);
  numbers.setUint32(25, packet.height);
  numbers.setUint8(29, packet.keyframe ? 1 : 0);
  return joined(session, new Uint8Array(numbers.buffer), utf8.encode(packet.codec));
}

/** @param {...Uint8Array} parts */
function joined(...parts) {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
