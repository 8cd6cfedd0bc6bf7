// Elementary functions of f32, accurate over the whole range: the built-in ones of WGSL may be far
// off. Functions named POLYNOMIAL_* are polynomials, made from tables of coefficients; so are the
// constants named TABLE_*.

fn limited(x: f32, low: f32, high: f32) -> f32 {
    let above = select(x, low, x < low);
    return select(above, high, above > high);
}

// 2 ** n for exponents of normal numbers.
fn power_of_two(n: i32) -> f32 { return float_of(u32(n + 127) << 23u); }

// x * 2 ** n for n from -252 to 254.
fn scaled(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * power_of_two(half) * power_of_two(n - half);
}

fn exp_of_reduced(r: f32) -> f32 { return fma(r * r, POLYNOMIAL_EXP(r), r) + 1.0; }

fn exp_reduction(x: f32) -> vec2<f32> {
    let n = round(x * TABLE_LOG2_E_0);
    // The limits are never met: compilers that would add up the parts of ln 2 stop there.
    let rest = clamp(fma(n, -TABLE_LN2_0, x), -1.0, 1.0);
    return vec2<f32>(n, fma(n, -TABLE_LN2_1, rest));
}

fn exp_f32(x: f32) -> f32 {
    let parts = exp_reduction(limited(x, -104.0, 89.0));
    let result = scaled(exp_of_reduced(parts.y), i32(parts.x));
    return select(result, x, is_nan(x));
}

fn exp2_f32(x: f32) -> f32 {
    let argument = limited(x, -151.0, 129.0);
    let n = round(argument);
    let result = scaled(exp_of_reduced((argument - n) * 0.6931471805599453), i32(n));
    return select(result, x, is_nan(x));
}

fn expm1_f32(x: f32) -> f32 {
    let parts = exp_reduction(limited(x, -18.0, 89.0));
    // Halved until the end: 2 ** n itself may overflow where the result does not.
    let half = power_of_two(i32(parts.x) - 1);
    let r = parts.y;
    let rest = fma(r * r, POLYNOMIAL_EXP(r), r);
    let result = fma(rest, half, half - 0.5) * 2.0;
    return select(result, x, absolute_f32(x) < 1.4901161193847656e-08 || is_nan(x));
}

fn tanh_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    let t = expm1_f32(min(magnitude, 9.25) * 2.0);
    let result = copysign_f32(min(t / (t + 2.0), 1.0), x); // a quotient may be rounded up
    return select(result, x, magnitude < 1.4901161193847656e-08 || is_nan(x));
}

// exp(x) / 2 for x >= 0, which overflows only where sinh and cosh do.
fn half_exp(x: f32) -> f32 {
    let parts = exp_reduction(min(x, 90.0));
    return scaled(exp_of_reduced(parts.y), i32(parts.x) - 1);
}

fn sinh_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    let half = half_exp(magnitude);
    let square = magnitude * magnitude;
    let near = fma(magnitude * square, POLYNOMIAL_SINH(square), magnitude);
    let result = copysign_f32(select(half - 0.25 / half, near, magnitude < 1.0), x);
    return select(result, x, is_nan(x) || magnitude < 1.4901161193847656e-08);
}

fn cosh_f32(x: f32) -> f32 {
    let half = half_exp(absolute_f32(x));
    return select(half + 0.25 / half, x, is_nan(x));
}

// Logarithms --------------------------------------------------------------------------------------

// n and m - 1 with x = 2 ** n * m and m from sqrt(1/2) to sqrt(2), for positive finite x.
fn log_reduction(x: f32) -> vec2<f32> {
    var bits = bitcast<u32>(x);
    var n = 0.0;
    if (bits < 0x800000u) {
        bits = bitcast<u32>(f32(bits));
        n = -149.0;
    }
    let offset = bits - 0x3F3504F3u;
    let exponent = i32(offset) >> 23u;
    let m = float_of((offset & 0x7FFFFFu) + 0x3F3504F3u);
    return vec2<f32>(n + f32(exponent), m - 1.0);
}

// log(1 + f) - f.
fn log_tail(f: f32) -> f32 { return f * f * fma(f, POLYNOMIAL_LOG(f), -0.5); }

fn natural_log(parts: vec2<f32>) -> f32 {
    let tail = fma(parts.x, TABLE_LN2_1, log_tail(parts.y));
    return fma(parts.x, TABLE_LN2_0, parts.y + tail);
}

// The result for positive finite x, and what a logarithm is elsewhere.
fn log_limits(x: f32, result: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7FFFFFFFu) == 0u) { return float_of(0xFF800000u); }
    if (bits > 0x7F800000u) { return float_of(0x7FC00000u); }
    return select(result, x, bits == 0x7F800000u);
}

fn log_f32(x: f32) -> f32 { return log_limits(x, natural_log(log_reduction(x))); }

fn log2_f32(x: f32) -> f32 {
    let parts = log_reduction(x);
    let f = parts.y;
    let low = fma(f, TABLE_LOG2_E_1, log_tail(f) * TABLE_LOG2_E_0);
    return log_limits(x, parts.x + fma(f, TABLE_LOG2_E_0, low));
}

fn log10_f32(x: f32) -> f32 {
    let parts = log_reduction(x);
    let f = parts.y;
    let low = fma(f, TABLE_LOG10_E_1, fma(log_tail(f), TABLE_LOG10_E_0, parts.x * TABLE_LOG10_2_1));
    return log_limits(x, fma(parts.x, TABLE_LOG10_2_0, fma(f, TABLE_LOG10_E_0, low)));
}

// The exponent comes from the rounded 1 + x, the significand from x itself.
fn log1p_f32(x: f32) -> f32 {
    if (absolute_f32(x) < 1.4901161193847656e-08) { return x; }
    let sum = 1.0 + x;
    let parts = log_reduction(sum);
    var f = parts.y;
    if (x < 16777216.0) {
        let shrink = power_of_two(-i32(parts.x));
        f = fma(x, shrink, shrink - 1.0);
    }
    return log_limits(sum, natural_log(vec2<f32>(parts.x, f)));
}

// Trigonometric functions -------------------------------------------------------------------------

// The bits of 2 / pi below the binary point.
const TWO_OVER_PI = array<u32, 8>(
    0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
    0xDB629599u, 0x3C439041u, 0xFE5163ABu, 0xDEBBC561u,
);

// 32 bits of 2 / pi, beginning so many bits below the binary point.
fn bits_of_two_over_pi(start: i32) -> u32 {
    var table = TWO_OVER_PI;
    if (start <= -32) { return 0u; }
    if (start < 0) { return table[0] >> u32(-start); }
    let word = u32(start) >> 5u;
    let bit = u32(start) & 31u;
    if (bit == 0u) { return table[word]; }
    return table[word] << bit | table[word + 1u] >> (32u - bit);
}

// An angle less a multiple of pi / 2, and that multiple modulo 4.
struct Angle { rest: f32, quadrant: u32 }

fn reduced_angle(x: f32) -> Angle {
    let magnitude = absolute_f32(x);
    if (magnitude < 4096.0) {
        // The parts of pi / 2 have few enough bits that their products are exact.
        let n = round(x * 0.6366197723675814);
        let rest = ((x - n * 1.5703125) - n * 0.0004837512969970703125) - n * 7.54953362047672271729e-08;
        return Angle(rest - n * 2.5633440723872e-12, u32(i32(n)) & 3u);
    }
    // With x = m * 2 ** e, the product of m with 2 / pi, without the part that is a multiple of 4,
    // as a number of 64 bits: two in front of the binary point.
    let bits = bitcast<u32>(magnitude);
    let exponent = i32(bits >> 23u) - 150;
    let m = (bits & 0x7FFFFFu) | 0x800000u;
    let first = exponent - 2;
    let low = product_of_words(m, bits_of_two_over_pi(first + 64));
    let middle = product_of_words(m, bits_of_two_over_pi(first + 32));
    let high = m * bits_of_two_over_pi(first);
    let sum = add_u64(vec2<u32>(middle.x, middle.y + high), vec2<u32>(low.y, 0u));
    let rounded = sum.y + 0x20000000u;
    let fraction = vec2<u32>(sum.x, (rounded & 0x3FFFFFFFu) - 0x20000000u);
    let rest = f32_of_i64(fraction) * 3.4061215800304958e-19;
    let quadrant = rounded >> 30u;
    if (x < 0.0) { return Angle(-rest, (4u - quadrant) & 3u); }
    return Angle(rest, quadrant);
}

fn near_sine(r: f32) -> f32 {
    let square = r * r;
    return fma(r * square, POLYNOMIAL_SIN(square), r);
}

fn near_cosine(r: f32) -> f32 {
    let square = r * r;
    return fma(square, fma(square, POLYNOMIAL_COS(square), -0.5), 1.0);
}

fn sin_f32(x: f32) -> f32 {
    if ((bitcast<u32>(x) & 0x7FFFFFFFu) >= 0x7F800000u) { return float_of(0x7FC00000u); }
    if (absolute_f32(x) < 0.000244140625) { return x; }
    let angle = reduced_angle(x);
    let chosen = select(near_sine(angle.rest), near_cosine(angle.rest), (angle.quadrant & 1u) != 0u);
    return select(chosen, -chosen, (angle.quadrant & 2u) != 0u);
}

fn cos_f32(x: f32) -> f32 {
    if ((bitcast<u32>(x) & 0x7FFFFFFFu) >= 0x7F800000u) { return float_of(0x7FC00000u); }
    let angle = reduced_angle(x);
    let chosen = select(near_cosine(angle.rest), near_sine(angle.rest), (angle.quadrant & 1u) != 0u);
    return select(chosen, -chosen, ((angle.quadrant + 1u) & 2u) != 0u);
}

fn tan_f32(x: f32) -> f32 {
    if ((bitcast<u32>(x) & 0x7FFFFFFFu) >= 0x7F800000u) { return float_of(0x7FC00000u); }
    if (absolute_f32(x) < 0.000244140625) { return x; }
    let angle = reduced_angle(x);
    let sine = near_sine(angle.rest);
    let cosine = near_cosine(angle.rest);
    if ((angle.quadrant & 1u) != 0u) { return -cosine / sine; }
    return sine / cosine;
}

// The arcsine of |x| is base + excess; or, where x is far from 0, half of what is missing to pi / 2.
fn arcsine_parts(magnitude: f32) -> vec2<f32> {
    let far = magnitude > 0.5;
    let square = select(magnitude * magnitude, (1.0 - magnitude) * 0.5, far);
    let base = select(magnitude, sqrt(square), far);
    return vec2<f32>(base, base * square * POLYNOMIAL_ASIN(square));
}

fn asin_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    if (!(magnitude <= 1.0)) { return float_of(0x7FC00000u); }
    if (magnitude < 0.000244140625) { return x; }
    let parts = arcsine_parts(magnitude);
    let missing = (TABLE_HALF_PI_0 - parts.x * 2.0) - (parts.y * 2.0 - TABLE_HALF_PI_1);
    return copysign_f32(select(parts.x + parts.y, missing, magnitude > 0.5), x);
}

fn acos_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    if (!(magnitude <= 1.0)) { return float_of(0x7FC00000u); }
    let parts = arcsine_parts(magnitude);
    let angle = parts.x + parts.y;
    let doubled = angle * 2.0;
    if (magnitude > 0.5) {
        return select(doubled, 2.0 * TABLE_HALF_PI_0 - (doubled - 2.0 * TABLE_HALF_PI_1), x < 0.0);
    }
    return TABLE_HALF_PI_0 - (select(angle, -angle, x < 0.0) - TABLE_HALF_PI_1);
}

fn near_arctangent(t: f32) -> f32 {
    let square = t * t;
    return fma(t * square, POLYNOMIAL_ATAN(square), t);
}

fn atan_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    if (is_nan(x) || magnitude < 0.000244140625) { return x; }
    if (magnitude > 3.0e38) { return copysign_f32(TABLE_HALF_PI_0, x); }
    if (magnitude > 1.0) {
        let angle = near_arctangent(1.0 / magnitude);
        return copysign_f32(TABLE_HALF_PI_0 - (angle - TABLE_HALF_PI_1), x);
    }
    return copysign_f32(near_arctangent(magnitude), x);
}

fn atan2_f32(y: f32, x: f32) -> f32 {
    if (is_nan(x) || is_nan(y)) { return float_of(0x7FC00000u); }
    let run = absolute_f32(x);
    let rise = absolute_f32(y);
    let steep = rise > run;
    let longer = max(rise, run);
    let shorter = min(rise, run);
    var angle = 0.0;
    if (longer > 0.0) {
        let infinite = bitcast<u32>(longer) == 0x7F800000u;
        let both = bitcast<u32>(shorter) == 0x7F800000u;
        // Scaled, so that the quotient of numbers near the ends of the range keeps its digits.
        let factor = select(select(1.0, 16777216.0, longer < 1.0e-30), 5.9604644775390625e-08, longer > 1.0e30);
        let ratio = select(shorter * factor / (longer * factor), select(0.0, 1.0, both), infinite);
        angle = near_arctangent(ratio);
    }
    if (steep) { angle = TABLE_HALF_PI_0 - (angle - TABLE_HALF_PI_1); }
    if ((bitcast<u32>(x) >> 31u) != 0u) { angle = 2.0 * TABLE_HALF_PI_0 - (angle - 2.0 * TABLE_HALF_PI_1); }
    return copysign_f32(angle, y);
}

// Inverse hyperbolic functions --------------------------------------------------------------------

fn asinh_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    if (is_nan(x) || magnitude < 0.000244140625) { return x; }
    if (magnitude > 1.0e9) { return copysign_f32(log_f32(magnitude) + 0.6931471805599453, x); }
    let square = magnitude * magnitude;
    return copysign_f32(log1p_f32(magnitude + square / (1.0 + sqrt(square + 1.0))), x);
}

fn acosh_f32(x: f32) -> f32 {
    if (!(x >= 1.0)) { return float_of(0x7FC00000u); }
    if (x > 1.0e9) { return log_f32(x) + 0.6931471805599453; }
    let above = x - 1.0;
    return log1p_f32(above + sqrt(above * (2.0 + above)));
}

fn atanh_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    if (is_nan(x) || magnitude < 0.000244140625) { return x; }
    if (magnitude > 1.0) { return float_of(0x7FC00000u); }
    if (magnitude == 1.0) { return copysign_f32(float_of(0x7F800000u), x); }
    return copysign_f32(0.5 * log1p_f32(2.0 * magnitude / (1.0 - magnitude)), x);
}

// The error function, and the normal distribution -------------------------------------------------

fn erf_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    let near = fma(magnitude, POLYNOMIAL_ERF(magnitude * magnitude), magnitude);
    let far = 1.0 - exp2_f32(-POLYNOMIAL_ERFC_BITS(min(magnitude, 3.94)));
    let result = copysign_f32(select(near, far, magnitude > 1.0), x);
    return select(result, x, is_nan(x));
}

// The tail beyond |x| is 2 ** -(x * x * log2(e) / 2 + q(|x|)), with a polynomial q.
fn normal_cdf_f32(x: f32) -> f32 {
    let magnitude = absolute_f32(x);
    let rest = POLYNOMIAL_NORMAL_BITS(min(magnitude, 5.5));
    let exponent = -fma(magnitude * magnitude, 0.7213475204444817, rest);
    let tail = select(0.0, exp2_f32(exponent), exponent > -126.0);
    return select(select(1.0 - tail, tail, x < 0.0), x, is_nan(x));
}

fn short_normal_cdf_f32(x: f32) -> f32 { return normal_cdf_f32(x); }

fn silu_f32(x: f32) -> f32 { return divided(x, 1.0 + exp_f32(-x)); }

fn short_silu_f32(x: f32) -> f32 { return silu_f32(x); }

// Powers ------------------------------------------------------------------------------------------

fn sqrt_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7FFFFFFFu) == 0u || bits == 0x7F800000u) { return x; }
    if (bits > 0x7F800000u) { return float_of(0x7FC00000u); }
    return sqrt(x);
}

// 2 ** (y * log2(x)) for positive x. Both factors are sums of two numbers, the first of few digits:
// their product is exact.
fn positive_power(x: f32, y: f32) -> f32 {
    let parts = log_reduction(x);
    let f = parts.y;
    let tail = fma(f, TABLE_LOG2_E_1, log_tail(f) * TABLE_LOG2_E_0);
    let fraction = fma(f, TABLE_LOG2_E_0, tail);
    let log_high = float_of(bitcast<u32>(parts.x + fraction) & 0xFFFFF000u);
    let log_low = fraction - (log_high - parts.x);
    let limited_y = clamp(y, -1.0e10, 1.0e10);
    let y_high = float_of(bitcast<u32>(limited_y) & 0xFFFFF000u);
    let high = log_high * y_high;
    let low = log_high * (limited_y - y_high) + log_low * limited_y;
    let exponent = high + low;
    if (exponent > 130.0) { return float_of(0x7F800000u); }
    if (exponent < -152.0) { return 0.0; }
    let n = round(exponent);
    return scaled(exp_of_reduced(((high - n) + low) * 0.6931471805599453), i32(n));
}

fn float_power_f32(x: f32, y: f32) -> f32 {
    let infinity = 0x7F800000u;
    let x_bits = bitcast<u32>(x);
    let y_bits = bitcast<u32>(y);
    let x_size = x_bits & 0x7FFFFFFFu;
    let y_size = y_bits & 0x7FFFFFFFu;
    if (x == 1.0 || y_size == 0u) { return 1.0; }
    if (x_size > infinity || y_size > infinity) { return float_of(0x7FC00000u); }
    let falls = (y_bits >> 31u) != 0u;
    if (y_size == infinity) {
        if (x_size == 0x3F800000u) { return 1.0; }
        let grows = (x_size > 0x3F800000u) != falls;
        return select(0.0, float_of(infinity), grows);
    }
    let whole = y_size >= 0x4B800000u || trunc_f32(y) == y;
    let is_odd = whole && y_size < 0x4B800000u && (u32(absolute_f32(y)) & 1u) != 0u;
    let sign = select(0u, x_bits & 0x80000000u, is_odd);
    if (x_size == 0u || x_size == infinity) {
        let grows = (x_size == infinity) != falls;
        return float_of(sign | select(0u, infinity, grows));
    }
    if ((x_bits >> 31u) != 0u && !whole) { return float_of(0x7FC00000u); }
    return float_of(sign | bitcast<u32>(positive_power(float_of(x_size), y)));
}
