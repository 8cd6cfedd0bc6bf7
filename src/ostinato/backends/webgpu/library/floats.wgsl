// Arithmetic of f32. A module must not contain NaN and infinities as constants, and devices may
// assume that there are none, so what depends on them looks at bits.

fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u; }

// Compilers may take zero divided by anything, and anything times a constant zero, for zero.
fn quotient(x: f32, y: f32) -> f32 {
    let size = bitcast<u32>(y) & 0x7FFFFFFFu;
    let undefined = (bitcast<u32>(x) & 0x7FFFFFFFu) == 0u && (size == 0u || size > 0x7F800000u);
    return select(divided(x, y), float_of(0x7FC00000u), undefined);
}

// The inverse of the largest numbers is subnormal: GPUs that multiply by it may take it for zero.
// Their quotients are off by some units in the last place: what is left of the dividend corrects them.
fn divided(x: f32, y: f32) -> f32 {
    let large = (bitcast<u32>(y) & 0x7FFFFFFFu) >= 0x7E800000u;
    let scale = select(1.0, 0.25, large);
    let dividend = kept(kept(x) * scale);
    let divisor = kept(y * scale);
    let near = kept(dividend / divisor);
    let rest = fma(-near, divisor, dividend);
    let found = kept(fma(rest, kept(1.0 / divisor), near));
    let finite = (bitcast<u32>(found) & 0x7FFFFFFFu) < 0x7F800000u;
    return select(near, found, finite && rest != 0.0);
}

fn times_zero(x: f32, zero: f32) -> f32 {
    let product = float_of((bitcast<u32>(x) ^ bitcast<u32>(zero)) & 0x80000000u);
    let undefined = (bitcast<u32>(x) & 0x7FFFFFFFu) >= 0x7F800000u;
    return select(product, float_of(0x7FC00000u), undefined);
}

// NaN where either is NaN.
fn maximum_f32(x: f32, y: f32) -> f32 {
    return select(select(x, y, x < y || is_nan(y)), x, is_nan(x));
}

fn minimum_f32(x: f32, y: f32) -> f32 {
    return select(select(x, y, y < x || is_nan(y)), x, is_nan(x));
}

// -0 becomes 0, NaN stays.
fn sign_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let one = float_of(0x3F800000u | (bits & 0x80000000u));
    let signed = select(one, 0.0, (bits & 0x7FFFFFFFu) == 0u);
    return select(signed, x, is_nan(x));
}

// A choice: LLVM 15 gets two masks beside a choice wrong, and so does Mesa's software adapter.
fn copysign_f32(x: f32, y: f32) -> f32 {
    let magnitude = bitcast<u32>(x) & 0x7FFFFFFFu;
    return float_of(select(magnitude, magnitude | 0x80000000u, bitcast<i32>(y) < 0));
}

fn absolute_f32(x: f32) -> f32 { return float_of(bitcast<u32>(x) & 0x7FFFFFFFu); }

fn negate_f32(x: f32) -> f32 { return float_of(bitcast<u32>(x) ^ 0x80000000u); }

fn trunc_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    return copysign_f32(select(floor(magnitude), magnitude, magnitude >= 8388608.0 || is_nan(x)), x);
}

fn floor_f32(x: f32) -> f32 {
    let whole = trunc_f32(x);
    let below = (bitcast<u32>(x) >> 31u) != 0u && whole != x && !is_nan(x);
    return select(whole, whole - 1.0, below);
}

fn ceil_f32(x: f32) -> f32 { return negate_f32(floor_f32(negate_f32(x))); }

// Halves go to the even number.
fn round_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    let whole = floor(magnitude);
    let rest = magnitude - whole;
    let up = rest > 0.5 || (rest == 0.5 && (u32(whole) & 1u) != 0u);
    let near = select(whole, whole + 1.0, up);
    return copysign_f32(select(near, magnitude, magnitude >= 8388608.0 || is_nan(x)), x);
}

// The remainder with the sign of x, exact: eight bits of the quotient's range at a time.
fn remainder_truncated_f32(x: f32, y: f32) -> f32 {
    let x_bits = bitcast<u32>(x) & 0x7FFFFFFFu;
    let y_bits = bitcast<u32>(y) & 0x7FFFFFFFu;
    if (x_bits >= 0x7F800000u || y_bits > 0x7F800000u || y_bits == 0u) { return float_of(0x7FC00000u); }
    if (x_bits < y_bits) { return x; }
    let x_exponent = max(x_bits >> 23u, 1u);
    let y_exponent = max(y_bits >> 23u, 1u);
    var rest = (x_bits & 0x7FFFFFu) | select(0u, 0x800000u, x_bits >= 0x800000u);
    let divisor = (y_bits & 0x7FFFFFu) | select(0u, 0x800000u, y_bits >= 0x800000u);
    rest = rest % divisor;
    var left = x_exponent - y_exponent;
    while (left > 0u && rest != 0u) {
        let step = min(left, 8u);
        rest = (rest << step) % divisor;
        left -= step;
    }
    let sign = bitcast<u32>(x) & 0x80000000u;
    if (rest == 0u) { return float_of(sign); }
    // The highest bit goes where a float keeps it implicitly, if its exponent allows that.
    let shift = min(countLeadingZeros(rest) - 8u, y_exponent - 1u);
    rest <<= shift;
    let exponent = select(0u, y_exponent - shift, rest >= 0x800000u);
    return float_of(sign | exponent << 23u | (rest & 0x7FFFFFu));
}

// The sum of two numbers of opposite signs, the first of which is less than the second in magnitude.
// GPUs may take what is subnormal for zero.
fn opposite_sum(x: f32, y: f32) -> f32 {
    let x_bits = bitcast<u32>(x) & 0x7FFFFFFFu;
    let y_bits = bitcast<u32>(y) & 0x7FFFFFFFu;
    if (y_bits < 0x1000000u) { return float_of(bitcast<u32>(y) - x_bits); } // both in units of 2 ** -149
    if (x_bits >= 0x800000u || y_bits > 0x10000000u) { return x + y; }
    let scaled = copysign_f32(f32(x_bits) * 1.504632769052528e-36, x); // 2 ** -119
    return kept(kept(y * 1073741824.0) + scaled) * 9.313225746154785e-10;
}

fn floor_remainder_f32(x: f32, y: f32) -> f32 {
    let rest = remainder_truncated_f32(x, y);
    if (is_nan(rest)) { return rest; }
    if ((bitcast<u32>(rest) & 0x7FFFFFFFu) == 0u) { return copysign_f32(0.0, y); }
    if ((bitcast<u32>(rest) ^ bitcast<u32>(y)) >> 31u == 0u) { return rest; }
    return opposite_sum(rest, y);
}

fn floor_divide_f32(x: f32, y: f32) -> f32 {
    let plain = divided(x, y);
    if (y == 0.0) { return plain; }
    let rest = remainder_truncated_f32(x, y);
    if (is_nan(rest)) { return rest; }
    var quotient = divided(x - rest, y);
    if (rest != 0.0 && (y < 0.0) != (rest < 0.0)) { quotient = quotient - 1.0; }
    // The quotient is an integer but for rounding; one just below it must not be floored away.
    return select(round_f32(quotient), copysign_f32(0.0, plain), quotient == 0.0);
}

// Conversions -------------------------------------------------------------------------------------

// Truncated; the ends of the range for what is beyond, and 0 for NaN.
fn i32_of_f32(x: f32) -> i32 {
    if (is_nan(x)) { return 0; }
    if (x >= 2147483648.0) { return 2147483647; }
    if (x <= -2147483648.0) { return i32(0x80000000u); }
    return i32(x);
}

fn u32_of_f32(x: f32) -> u32 {
    if (is_nan(x) || x <= 0.0) { return 0u; }
    if (x >= 4294967296.0) { return 0xFFFFFFFFu; }
    return u32(x);
}

fn float16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) { return sign | 0x7E00u; }
    if (magnitude >= 0x477FF000u) { return sign | 0x7C00u; }
    if (magnitude < 0x38800000u) {
        // A sum that has no room for the bits beyond the last of a subnormal number.
        return sign | (bitcast<u32>(float_of(magnitude) + 0.5) - 0x3F000000u);
    }
    let rounded = magnitude + 0xFFFu + ((magnitude >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

fn from_float16(code: u32) -> f32 {
    let sign = (code & 0x8000u) << 16u;
    let magnitude = code & 0x7FFFu;
    if (magnitude >= 0x7C00u) {
        let quiet = select(0u, 0x400000u, magnitude > 0x7C00u);
        return float_of(sign | 0x7F800000u | quiet | (magnitude & 0x3FFu) << 13u);
    }
    let small = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-08);
    return float_of(sign | select((magnitude << 13u) + 0x38000000u, small, magnitude < 0x400u));
}

fn bfloat16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = bits + 0x7FFFu + ((bits >> 16u) & 1u);
    return select(rounded, bits | 0x400000u, is_nan(x)) >> 16u;
}

fn from_bfloat16(code: u32) -> f32 { return float_of(code << 16u); }

// The halves of a word. The built-in function may take what is subnormal for zero.
fn pair_of_halves(word: u32) -> vec2<f32> {
    let magnitudes = vec2<u32>(word & 0x7FFFu, (word >> 16u) & 0x7FFFu);
    let signs = vec2<u32>(word << 16u, word) & vec2<u32>(0x80000000u);
    let above = bitcast<vec2<f32>>((magnitudes << vec2<u32>(13u)) | vec2<u32>(0x38800000u));
    let small = bitcast<vec2<u32>>(above - vec2<f32>(6.103515625e-05)) | signs;
    return select(unpack2x16float(word), bitcast<vec2<f32>>(small), magnitudes < vec2<u32>(0x400u));
}

fn round_float16(x: f32) -> f32 { return from_float16(float16_bits(x)); }
fn round_bfloat16(x: f32) -> f32 { return from_bfloat16(bfloat16_bits(x)); }

// Powers of two: the exponent alone, without a sign. 255 is NaN.
fn from_float8_e8m0fnu(code: u32) -> f32 {
    if (code == 0xFFu) { return float_of(0x7FC00000u); }
    return float_of(select(code << 23u, 0x400000u, code == 0u));
}

// The nearest power of two, the greater of two; NaN for what has none.
fn float8_e8m0fnu_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = select((bits + 0x400000u) >> 23u, 0u, bits < 0x600000u);
    return select(0xFFu, rounded, bits != 0u && bits < 0x7F800000u && rounded < 0xFFu);
}

// Zero, but only at run time.
var<private> kept_zero: u32;

// The number itself, which a compiler does not know: it keeps sums and products of the graph as they
// were rounded.
fn kept(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | kept_zero); }
