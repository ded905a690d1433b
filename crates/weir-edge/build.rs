//! Links the library so that it stays loaded, and its bench with a Lua.

fn main() {
    // lua_close(), when an nginx worker ends, unloads the libraries that Lua
    // loaded, and with them the code that the I/O thread is running. With
    // this flag dlclose() leaves the library where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The one that Debian's nginx has. By its file name: there is no other without
    // the package for development.
    println!("cargo:rustc-link-arg-benches=-l:libluajit-5.1.so.2");
}
