// What Python packed (seeing/pack.py), as numbers.

/**
 * Arrays behind gzip and base64. Returns get(name) -> {at(i), shape} or null.
 * @param {{index: Object<string, [number, number[], number | string]>, bytes: string}} packed
 */
async function unpack({ index, bytes }) {
  const squeezed = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
  const stream = new Blob([squeezed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const [half, view] = [halfPrecision(), new DataView(raw.buffer)];
  return (name) => {
    if (!index[name]) return null;
    const [start, shape, stored] = index[name];
    const unit = Number(stored); // where it is no name
    const n = shape.reduce((a, b) => a * b, 1);
    const pair = (i) => (raw[start + i] << 8) | raw[start + n + i];
    const named = { index: pair, float: (i) => view.getFloat32(start + 4 * i, true), int8: (i) => view.getInt8(start + i) };
    return { at: named[stored] || (unit === 0 ? (i) => raw[start + i] : (i) => unit * half[pair(i)]), shape };
  };
}

/** The value of each of the 65,536 numbers of two bytes (IEEE 754 binary16). */
function halfPrecision() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    table[bits] = bits & 0x8000 ? -size : size;
  }
  return table;
}
