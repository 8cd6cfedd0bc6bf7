// Sort keys: unsigned integers in the order of elements, NaN above all, the zeros equal. The best
// element, the greatest or the least, has the greatest key.

fn greatest_key_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) { return 0xFFFFFFFFu; }
    if (magnitude == 0u) { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

fn greatest_key_i32(x: i32) -> u32 { return bitcast<u32>(x) ^ 0x80000000u; }
fn greatest_key_u32(x: u32) -> u32 { return x; }
fn greatest_key_i64(x: vec2<u32>) -> vec2<u32> { return x ^ vec2<u32>(0u, 0x80000000u); }
fn greatest_key_u64(x: vec2<u32>) -> vec2<u32> { return x; }

fn least_key_f32(x: f32) -> u32 { return ~greatest_key_f32(x); }
fn least_key_i32(x: i32) -> u32 { return ~greatest_key_i32(x); }
fn least_key_u32(x: u32) -> u32 { return ~x; }
fn least_key_i64(x: vec2<u32>) -> vec2<u32> { return ~greatest_key_i64(x); }
fn least_key_u64(x: vec2<u32>) -> vec2<u32> { return ~x; }
