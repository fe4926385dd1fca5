//! Lets the linker of each platform leave the symbols of Node open.

fn main() {
    napi_build::setup();
}
