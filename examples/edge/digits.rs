//! Classifies two images with libdigits.a.
use std::ffi::{c_char, c_int, c_void, CStr};

const F32: i32 = 28; // SMELT_F32 of digits.h
const MAX_RANK: usize = 16;

#[repr(C)]
struct Tensor {
    dtype: i32,
    rank: i32,
    sizes: [i64; MAX_RANK],
    data: *mut c_void,
    bytes: i64,
}

extern "C" {
    fn digits_create(options: *const c_void, model: *mut *mut c_void) -> c_int;
    fn smelt_model_call(model: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> c_int;
    fn smelt_model_destroy(model: *mut c_void);
    fn smelt_error() -> *const c_char;
}

fn tensor(data: &mut [f32], rows: usize, columns: usize) -> Tensor {
    let mut sizes = [0; MAX_RANK];
    (sizes[0], sizes[1]) = (rows as i64, columns as i64);
    Tensor { dtype: F32, rank: 2, sizes, data: data.as_mut_ptr().cast(), bytes: (4 * data.len()) as i64 }
}

fn check(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(smelt_error()) }.to_string_lossy().into_owned())
}

fn main() -> Result<(), String> {
    let mut model = std::ptr::null_mut();
    check(unsafe { digits_create(std::ptr::null(), &mut model) })?;
    let (mut pixels, mut results) = (vec![0f32; 2 * 64], vec![0f32; 2 * 10]);
    for row in 0..8 {
        pixels[64 + row * 8 + 3] = 15.0;
        pixels[64 + row * 8 + 4] = 15.0;
    }
    let mut input = tensor(&mut pixels, 2, 64);
    let mut output = tensor(&mut results, 2, 10);
    check(unsafe { smelt_model_call(model, &input, &mut output) })?;
    for (i, row) in results.chunks(10).enumerate() {
        let best = (0..10).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        println!("image {i}: {best} ({:.3})", row[best]);
    }
    input.sizes[1] = 63; // too narrow
    println!("{}", check(unsafe { smelt_model_call(model, &input, &mut output) }).unwrap_err());
    unsafe { smelt_model_destroy(model) };
    Ok(())
}
