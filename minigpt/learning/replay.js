// The live cells of a lesson: what torch has computed is computed again, operation by operation, from numbers that the
// reader has changed (`tape.py`), in double precision; and the tables and bars follow.

/** @typedef {{shape: number[], data: number[]}} Numbers an array of any shape, its last axis together in `data` */
/** @typedef {{alpha?: number, dtype?: null}} Options */
/** @typedef {Record<string, any[]>} Operations number of a node -> [operation, arguments, options, part] */
/** @typedef {{inputs: Record<string, Numbers>, operations: Operations, constants: Record<string, Numbers>}} Tape */

/** @type {(shape: number[]) => number} How many numbers an array of a shape has. */
const sizeOf = (shape) => shape.reduce((size, length) => size * length, 1);

/** @type {(axis: number, axes: number) => number} An axis, counted from the front. */
const axisOf = (axis, axes) => (axis < 0 ? axis + axes : axis);

/**
 * The place of a number in an array of a shape, as [row, column, ...].
 * @param {number[]} shape @param {number} index
 */
function placeOf(shape, index) {
  const place = [];
  for (let axis = shape.length - 1, rest = index; axis >= 0; axis--) {
    place.unshift(rest % shape[axis]);
    rest = Math.floor(rest / shape[axis]);
  }
  return place;
}

/**
 * An array of a shape, each number computed from its place. @param {number[]} shape
 * @param {(place: number[]) => number} compute @returns {Numbers}
 */
const filled = (shape, compute) => ({ shape, data: Array.from({ length: sizeOf(shape) }, (_, i) => compute(placeOf(shape, i))) });

/**
 * The number at a place. An array with fewer axes, or with an axis of one, is repeated.
 * @param {Numbers} from @param {number[]} place
 */
function at(from, place) {
  const behind = place.length - from.shape.length;
  return from.data[from.shape.reduce((index, length, axis) => index * length + (length === 1 ? 0 : place[axis + behind]), 0)];
}

/** A number as an array without axes. @param {Numbers | number | string} x @returns {Numbers} */
const asArray = (x) => (typeof x === "object" ? x : { shape: [], data: [Number(x)] });

/** The shape of two arrays that are joined number by number. @param {number[]} a @param {number[]} b */
function joined(a, b) {
  const [long, other] = a.length >= b.length ? [a, b] : [b, a];
  const behind = long.length - other.length;
  return long.map((length, axis) => (axis < behind || length !== 1 ? length : other[axis - behind]));
}

/**
 * Two arrays joined number by number.
 * @param {any} x @param {any} y @param {(a: number, b: number) => number} compute
 */
function onBoth(x, y, compute) {
  const [a, b] = [asArray(x), asArray(y)];
  return filled(joined(a.shape, b.shape), (place) => compute(at(a, place), at(b, place)));
}

/** Something made of each number. @param {Numbers} a @param {(x: number) => number} compute @returns {Numbers} */
const onEach = (a, compute) => ({ shape: a.shape, data: a.data.map((x) => compute(x)) });

/**
 * One number made of all those along some axes, by default all. @param {Numbers} a @param {number[] | null | undefined} axes
 * @param {boolean | undefined} keep whether the axes stay, with a length of one @param {(all: number[]) => number} compute
 */
function along(a, axes, keep, compute) {
  const gone = a.shape.map((_, axis) => !axes?.length || axes.some((each) => axisOf(each, a.shape.length) === axis));
  const kept = a.shape.map((length, axis) => (gone[axis] ? 1 : length));
  /** @type {number[][]} */
  const groups = Array.from({ length: sizeOf(kept) }, () => []);
  a.data.forEach((x, i) => {
    const index = placeOf(a.shape, i).reduce((sum, step, axis) => sum * kept[axis] + (gone[axis] ? 0 : step), 0);
    groups[index].push(x);
  });
  return { shape: keep ? kept : kept.filter((_, axis) => !gone[axis]), data: groups.map(compute) };
}

/** A product of matrices, also of stacks of them. @param {Numbers} a @param {Numbers} b */
const product = (a, b) => filled([...a.shape.slice(0, -1), b.shape[b.shape.length - 1]], (place) => {
  const [stack, column] = [place.slice(0, -2), place[place.length - 1]];
  const row = place.slice(0, -1);
  return Array.from({ length: a.shape[a.shape.length - 1] }, (_, k) => at(a, [...row, k]) * at(b, [...stack, k, column]))
    .reduce((sum, x) => sum + x, 0);
});

/** The same numbers in another shape, of which one length may be -1. @param {Numbers} a @param {number[]} shape */
const reshaped = (a, shape) => ({ data: a.data, shape: shape.map((length) => (length === -1 ? -sizeOf(a.shape) / sizeOf(shape) : length)) });

/** The axes in another order. @param {Numbers} a @param {number[]} axes */
const permuted = (a, axes) => filled(axes.map((axis) => a.shape[axisOf(axis, axes.length)]), (place) => {
  /** @type {number[]} */
  const source = [];
  axes.forEach((axis, i) => { source[axisOf(axis, axes.length)] = place[i]; });
  return at(a, source);
});

/** Two axes change places. @param {Numbers} a @param {number} one @param {number} other */
function transposed(a, one, other) {
  const axes = a.shape.map((_, axis) => axis);
  [axes[axisOf(one, axes.length)], axes[axisOf(other, axes.length)]] = [axisOf(other, axes.length), axisOf(one, axes.length)];
  return permuted(a, axes);
}

/** The part of an array at one place of an axis. @param {Numbers} a @param {number} axis @param {number} index */
function selected(a, axis, index) {
  const [here, from] = [axisOf(axis, a.shape.length), index < 0 ? index + a.shape[axisOf(axis, a.shape.length)] : index];
  return filled(a.shape.toSpliced(here, 1), (place) => at(a, place.toSpliced(here, 0, from)));
}

/** Arrays put one behind the other along an axis. @param {Numbers[]} all @param {number} axis */
function concatenated(all, axis = 0) {
  const here = axisOf(axis, all[0].shape.length);
  const parts = all.flatMap((each) => Array.from({ length: each.shape[here] }, (_, i) => selected(each, here, i)));
  return stacked(parts, here);
}

/** Arrays of one shape as parts of a new axis. @param {Numbers[]} all @param {number} axis */
function stacked(all, axis = 0) {
  const here = axisOf(axis, all[0].shape.length + 1);
  return filled(all[0].shape.toSpliced(here, 0, all.length), (place) => at(all[place[here]], place.toSpliced(here, 1)));
}

/** The sum of some numbers. @param {number[]} numbers */
const total = (numbers) => numbers.reduce((sum, x) => sum + x, 0);

/**
 * Part of an axis.
 * @param {Numbers} a @param {number} axis @param {number} start @param {number} end @param {number} step
 */
function sliced(a, axis, start, end, step) {
  const here = axisOf(axis, a.shape.length);
  const length = a.shape[here];
  const [from, to] = [start, end].map((edge) => Math.max(0, Math.min(length, edge < 0 ? edge + length : edge)));
  const shape = a.shape.with(here, Math.max(0, Math.ceil((to - from) / step)));
  return filled(shape, (place) => at(a, place.with(here, from + step * place[here])));
}

/**
 * The axes of length one are left out, or some of them.
 * @param {Numbers} a @param {number | number[] | undefined} axes
 */
function squeezed(a, axes) {
  const may = axes === undefined ? null : [axes].flat().map((axis) => axisOf(axis, a.shape.length));
  return reshaped(a, a.shape.filter((length, axis) => length !== 1 || (may && !may.includes(axis))));
}

/** Repeated to a shape, in which -1 is the length as it is. @param {Numbers} a @param {number[]} shape */
const expanded = (a, shape) => filled(shape.map((length, i) => (length === -1 ? a.shape[i + a.shape.length - shape.length] : length)),
  (place) => at(a, place));

/** The softmax along an axis. @param {Numbers} a @param {number} axis */
function softmaxed(a, axis) {
  const powers = onBoth(a, along(a, [axis], true, (all) => Math.max(...all)), (x, most) => Math.exp(x - most));
  return onBoth(powers, along(powers, [axis], true, total), (x, sum) => x / sum);
}

/**
 * The operations of torch by their names in aten, of which `tape.py` reads the names.
 * @type {Record<string, (all: any[], options: any) => any>}
 */
const REPLAYED = {
  add: ([a, b], { alpha = 1 }) => onBoth(a, b, (x, y) => x + alpha * y),
  sub: ([a, b], { alpha = 1 }) => onBoth(a, b, (x, y) => x - alpha * y),
  rsub: ([a, b], { alpha = 1 }) => onBoth(a, b, (x, y) => y - alpha * x),
  mul: ([a, b]) => onBoth(a, b, (x, y) => x * y),
  div: ([a, b]) => onBoth(a, b, (x, y) => x / y),
  pow: ([a, b]) => onBoth(a, b, (x, y) => x ** y),
  exp: ([a]) => onEach(a, Math.exp),
  neg: ([a]) => onEach(a, (x) => -x),
  abs: ([a]) => onEach(a, Math.abs),
  sqrt: ([a]) => onEach(a, Math.sqrt),
  cos: ([a]) => onEach(a, Math.cos),
  sin: ([a]) => onEach(a, Math.sin),
  log: ([a]) => onEach(a, Math.log),
  clamp: ([a, low, high]) => onEach(a, (x) => Math.min(Math.max(x, low ?? -Infinity), high ?? Infinity)),
  sum: ([a, axes, keep]) => along(a, axes, keep, total),
  mean: ([a, axes, keep]) => along(a, axes, keep, (all) => total(all) / all.length),
  amax: ([a, axes, keep]) => along(a, axes, keep, (all) => Math.max(...all)),
  linalg_vector_norm: ([a, p = 2, axes, keep]) => along(a, axes, keep, (all) => total(all.map((x) => Math.abs(x) ** p)) ** (1 / p)),
  _softmax: ([a, axis]) => softmaxed(a, axis),
  mm: ([a, b]) => product(a, b),
  bmm: ([a, b]) => product(a, b),
  mv: ([a, b]) => selected(product(a, reshaped(b, [-1, 1])), 1, 0),
  dot: ([a, b]) => along(onBoth(a, b, (x, y) => x * y), null, false, total),
  masked_fill: ([a, mask, x]) => filled(joined(a.shape, mask.shape), (place) => at(at(mask, place) ? asArray(x) : a, place)),
  tril: ([a, shift = 0]) => filled(a.shape, (place) => (place[place.length - 1] - place[place.length - 2] > shift ? 0 : at(a, place))),
  t: ([a]) => (a.shape.length < 2 ? a : transposed(a, 0, 1)),
  transpose: ([a, one, other]) => transposed(a, one, other),
  permute: ([a, axes]) => permuted(a, axes),
  select: ([a, axis, index]) => selected(a, axis, index),
  slice: ([a, axis = 0, start, end, step = 1]) => sliced(a, axis, start ?? 0, end ?? Infinity, step),
  unbind: ([a, axis = 0]) => Array.from({ length: a.shape[axisOf(axis, a.shape.length)] }, (_, i) => selected(a, axis, i)),
  unsqueeze: ([a, axis]) => reshaped(a, a.shape.toSpliced(axisOf(axis, a.shape.length + 1), 0, 1)),
  squeeze: ([a, axes]) => squeezed(a, axes),
  expand: ([a, shape]) => expanded(a, shape),
  view: ([a, shape]) => reshaped(a, shape),
  _unsafe_view: ([a, shape]) => reshaped(a, shape),
  stack: ([all, axis]) => stacked(all, axis),
  cat: ([all, axis]) => concatenated(all, axis),
  _to_copy: ([a]) => a,
  clone: ([a]) => a,
};

/**
 * Everything that follows from the inputs, by the numbers of the nodes.
 * @param {Tape} tape @param {Record<string, Numbers>} inputs @returns {Record<string, Numbers>}
 */
function replay(tape, inputs) {
  const values = { ...withInfinities(tape.constants), ...inputs };
  /** @type {(argument: any) => any} */
  const resolved = (argument) => {
    if (Array.isArray(argument)) return argument.map(resolved);
    if (argument?.node !== undefined) return values[argument.node];
    return argument === null ? undefined : typeof argument === "string" ? Number(argument) : argument;
  };
  for (const [node, [operation, args, options, part]] of Object.entries(tape.operations)) {
    const result = REPLAYED[operation](args.map(resolved), options);
    values[node] = part === null ? result : result[part];
  }
  return values;
}

/** Arrays as they stand in the page, with infinity as a text. @param {Record<string, Numbers>} arrays */
const withInfinities = (arrays) => Object.fromEntries(Object.entries(arrays).map(([node, { shape, data }]) =>
  [node, { shape, data: data.map(Number) }]));
