// Integers of 64 bits as pairs of words, the lower one first, with every case defined as for those
// of 32 bits.

fn product_of_words(x: u32, y: u32) -> vec2<u32> {
    let x_low = x & 0xFFFFu;
    let x_high = x >> 16u;
    let y_low = y & 0xFFFFu;
    let y_high = y >> 16u;
    let low = x_low * y_low;
    let middle = x_high * y_low + (low >> 16u);
    let across = x_low * y_high + (middle & 0xFFFFu);
    return vec2<u32>(across << 16u | (low & 0xFFFFu), x_high * y_high + (middle >> 16u) + (across >> 16u));
}

fn add_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let low = x.x + y.x;
    return vec2<u32>(low, x.y + y.y + select(0u, 1u, low < x.x));
}

fn subtract_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x - y.x, x.y - y.y - select(0u, 1u, x.x < y.x));
}

fn multiply_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let low = product_of_words(x.x, y.x);
    return vec2<u32>(low.x, low.y + x.x * y.y + x.y * y.x);
}

fn negate_u64(x: vec2<u32>) -> vec2<u32> { return subtract_u64(vec2<u32>(0u, 0u), x); }

fn is_negative(x: vec2<u32>) -> bool { return (x.y >> 31u) != 0u; }

fn absolute_i64(x: vec2<u32>) -> vec2<u32> { return select(x, negate_u64(x), is_negative(x)); }

fn equal_u64(x: vec2<u32>, y: vec2<u32>) -> bool { return x.x == y.x && x.y == y.y; }

fn less_u64(x: vec2<u32>, y: vec2<u32>) -> bool {
    return x.y < y.y || (x.y == y.y && x.x < y.x);
}

fn less_i64(x: vec2<u32>, y: vec2<u32>) -> bool {
    return i32(x.y) < i32(y.y) || (x.y == y.y && x.x < y.x);
}

fn maximum_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return select(x, y, less_u64(x, y)); }
fn minimum_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return select(x, y, less_u64(y, x)); }
fn maximum_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return select(x, y, less_i64(x, y)); }
fn minimum_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return select(x, y, less_i64(y, x)); }

fn sign_u64(x: vec2<u32>) -> vec2<u32> { return vec2<u32>(min(x.x | x.y, 1u), 0u); }

fn sign_i64(x: vec2<u32>) -> vec2<u32> {
    return select(sign_u64(x), vec2<u32>(0xFFFFFFFFu, 0xFFFFFFFFu), is_negative(x));
}

// Shifts by less than 64.
fn shifted_left(x: vec2<u32>, count: u32) -> vec2<u32> {
    let part = count & 31u;
    let carried = select(x.x >> ((32u - part) & 31u), 0u, part == 0u);
    let near = vec2<u32>(x.x << part, x.y << part | carried);
    return select(near, vec2<u32>(0u, x.x << part), count >= 32u);
}

fn shifted_right(x: vec2<u32>, count: u32) -> vec2<u32> {
    let part = count & 31u;
    let carried = select(x.y << ((32u - part) & 31u), 0u, part == 0u);
    let near = vec2<u32>(x.x >> part | carried, x.y >> part);
    return select(near, vec2<u32>(x.y >> part, 0u), count >= 32u);
}

fn shift_left_u64(x: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
    return select(vec2<u32>(0u, 0u), shifted_left(x, count.x & 63u), count.y == 0u && count.x < 64u);
}

fn shift_right_u64(x: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
    return select(vec2<u32>(0u, 0u), shifted_right(x, count.x & 63u), count.y == 0u && count.x < 64u);
}

fn shift_right_i64(x: vec2<u32>, count: vec2<u32>) -> vec2<u32> {
    let bits = select(63u, count.x & 63u, count.y == 0u && count.x < 64u);
    let flipped = select(x, ~x, is_negative(x));
    let moved = shifted_right(flipped, bits);
    return select(moved, ~moved, is_negative(x));
}

fn divide_truncated_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    if (y.x == 0u && y.y == 0u) { return vec2<u32>(0u, 0u); }
    if (x.y == 0u && y.y == 0u) { return vec2<u32>(x.x / y.x, 0u); }
    var quotient = vec2<u32>(0u, 0u);
    var remainder = vec2<u32>(0u, 0u);
    for (var bit = 0; bit < 64; bit++) {
        let carried = is_negative(remainder);
        remainder = shifted_left(remainder, 1u) | vec2<u32>(shifted_right(x, u32(63 - bit)).x & 1u, 0u);
        quotient = shifted_left(quotient, 1u);
        if (carried || !less_u64(remainder, y)) {
            remainder = subtract_u64(remainder, y);
            quotient.x |= 1u;
        }
    }
    return quotient;
}

fn remainder_truncated_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    if (y.x == 0u && y.y == 0u) { return vec2<u32>(0u, 0u); }
    return subtract_u64(x, multiply_u64(divide_truncated_u64(x, y), y));
}

fn floor_divide_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return divide_truncated_u64(x, y); }
fn floor_remainder_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return remainder_truncated_u64(x, y); }
fn index_divide_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return divide_truncated_u64(x, y); }
fn index_remainder_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> { return remainder_truncated_u64(x, y); }

fn divide_truncated_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let quotient = divide_truncated_u64(absolute_i64(x), absolute_i64(y));
    return select(quotient, negate_u64(quotient), is_negative(x) != is_negative(y));
}

fn remainder_truncated_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let remainder = remainder_truncated_u64(absolute_i64(x), absolute_i64(y));
    return select(remainder, negate_u64(remainder), is_negative(x));
}

fn floor_divide_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    if (y.x == 0u && y.y == 0u) { return vec2<u32>(0u, 0u); }
    let quotient = divide_truncated_i64(x, y);
    let rest = subtract_u64(x, multiply_u64(quotient, y));
    let below = (rest.x != 0u || rest.y != 0u) && is_negative(rest) != is_negative(y);
    return select(quotient, subtract_u64(quotient, vec2<u32>(1u, 0u)), below);
}

fn floor_remainder_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    if (y.x == 0u && y.y == 0u) { return vec2<u32>(0u, 0u); }
    let rest = remainder_truncated_i64(x, y);
    let below = (rest.x != 0u || rest.y != 0u) && is_negative(rest) != is_negative(y);
    return select(rest, add_u64(rest, y), below);
}

fn power_u64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    var result = vec2<u32>(1u, 0u);
    var base = x;
    var exponent = y;
    while (exponent.x != 0u || exponent.y != 0u) {
        if ((exponent.x & 1u) != 0u) { result = multiply_u64(result, base); }
        base = multiply_u64(base, base);
        exponent = shifted_right(exponent, 1u);
    }
    return result;
}

fn power_i64(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    if (!is_negative(y)) { return power_u64(x, y); }
    let one = vec2<u32>(1u, 0u);
    if (equal_u64(x, one)) { return one; }
    if (equal_u64(negate_u64(x), one)) { return select(one, x, (y.x & 1u) != 0u); }
    return vec2<u32>(0u, 0u);
}

// Conversions -------------------------------------------------------------------------------------

fn widened_i32(x: i32) -> vec2<u32> { return vec2<u32>(u32(x), u32(x >> 31u)); }

// Rounded once: what lies below the 32 highest bits of the number only counts as not being zero.
fn f32_of_u64(x: vec2<u32>) -> f32 {
    if (x.y == 0u) { return f32(x.x); }
    let zeros = countLeadingZeros(x.y);
    let top = shifted_left(x, zeros);
    return f32(top.y | min(top.x, 1u)) * float_of((159u - zeros) << 23u);
}

fn f32_of_i64(x: vec2<u32>) -> f32 {
    let magnitude = f32_of_u64(absolute_i64(x));
    return select(magnitude, -magnitude, is_negative(x));
}

// The integral part of the magnitude, of floats below 2 ** 64.
fn whole_part(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x) & 0x7FFFFFFFu;
    let exponent = bits >> 23u;
    if (exponent < 127u) { return vec2<u32>(0u, 0u); }
    let significand = vec2<u32>((bits & 0x7FFFFFu) | 0x800000u, 0u);
    if (exponent >= 150u) { return shifted_left(significand, (exponent - 150u) & 63u); }
    return shifted_right(significand, 150u - exponent);
}

// Truncated; the ends of the range for what is beyond, and 0 for NaN.
fn i64_of_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) { return vec2<u32>(0u, 0u); }
    let negative = (bits >> 31u) != 0u;
    if ((bits & 0x7FFFFFFFu) >= 0x5F000000u) {
        return select(vec2<u32>(0xFFFFFFFFu, 0x7FFFFFFFu), vec2<u32>(0u, 0x80000000u), negative);
    }
    let magnitude = whole_part(x);
    return select(magnitude, negate_u64(magnitude), negative);
}

fn u64_of_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    if ((bits >> 31u) != 0u || bits > 0x7F800000u) { return vec2<u32>(0u, 0u); }
    if (bits >= 0x5F800000u) { return vec2<u32>(0xFFFFFFFFu, 0xFFFFFFFFu); }
    return whole_part(x);
}
