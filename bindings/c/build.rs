//! Names the shared library, and lets it refer to its own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libshmccl.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
