//! Links the library so that it stays loaded.

fn main() {
    // lua_close(), when an nginx worker ends, unloads the libraries that Lua
    // loaded, and with them the code that the I/O thread is running. With
    // this flag dlclose() leaves the library where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
