// Arithmetic of i32 and u32 with every case defined, as in NumPy: division by zero gives 0, and
// what is shifted out is gone (a negative integer shifted right becomes -1). Narrower integers are
// computed on as these, and wrapped by the caller.

fn opaque_i32(x: i32) -> i32 { return x; }
fn opaque_u32(x: u32) -> u32 { return x; }
fn opaque_f32(x: f32) -> f32 { return x; }

fn divide_truncated_i32(x: i32, y: i32) -> i32 {
    if (y == 0) { return 0; }
    if (y == -1) { return -x; }
    return x / y;
}

fn divide_truncated_u32(x: u32, y: u32) -> u32 {
    if (y == 0u) { return 0u; }
    return x / y;
}

fn remainder_truncated_i32(x: i32, y: i32) -> i32 {
    if (y == 0 || y == -1) { return 0; }
    return x - x / y * y;
}

fn remainder_truncated_u32(x: u32, y: u32) -> u32 {
    if (y == 0u) { return 0u; }
    return x % y;
}

fn floor_divide_i32(x: i32, y: i32) -> i32 {
    if (y == 0) { return 0; }
    if (y == -1) { return -x; }
    let quotient = x / y;
    let remainder = x - quotient * y;
    return select(quotient, quotient - 1, remainder != 0 && (remainder < 0) != (y < 0));
}

fn floor_divide_u32(x: u32, y: u32) -> u32 { return divide_truncated_u32(x, y); }

fn floor_remainder_i32(x: i32, y: i32) -> i32 {
    if (y == 0 || y == -1) { return 0; }
    let remainder = x - x / y * y;
    return select(remainder, remainder + y, remainder != 0 && (remainder < 0) != (y < 0));
}

fn floor_remainder_u32(x: u32, y: u32) -> u32 { return remainder_truncated_u32(x, y); }

// The quotient and remainder of indices that are not negative.
fn index_divide_i32(x: i32, y: i32) -> i32 { return i32(u32(x) / u32(y)); }
fn index_remainder_i32(x: i32, y: i32) -> i32 { return i32(u32(x) % u32(y)); }

fn shift_left_i32(x: i32, count: i32, width: u32) -> i32 {
    return select(0, x << (u32(count) & 31u), u32(count) < width);
}

fn shift_left_u32(x: u32, count: u32, width: u32) -> u32 {
    return select(0u, x << (count & 31u), count < width);
}

fn shift_right_i32(x: i32, count: i32, width: u32) -> i32 {
    return x >> min(u32(count), width - 1u);
}

fn shift_right_u32(x: u32, count: u32, width: u32) -> u32 {
    return select(0u, x >> (count & 31u), count < width);
}

// x ** y by repeated squaring. A negative exponent gives the exact result where that is an integer
// (bases 1 and -1), and 0 elsewhere.
fn power_i32(x: i32, y: i32) -> i32 {
    if (y < 0) {
        if (x == 1) { return 1; }
        if (x == -1) { return select(1, -1, (y & 1) != 0); }
        return 0;
    }
    return i32(power_u32(u32(x), u32(y)));
}

fn power_u32(x: u32, y: u32) -> u32 {
    var result = 1u;
    var base = x;
    var exponent = y;
    while (exponent != 0u) {
        if ((exponent & 1u) != 0u) { result *= base; }
        base *= base;
        exponent >>= 1u;
    }
    return result;
}
