//! What is installed: nginx, its modules and the libraries.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The nginx to run.
pub(super) fn program() -> String {
    std::env::var("NGINX").unwrap_or_else(|_| "nginx".to_owned())
}

/// The Lua search path for files of this extension: `LUALIB` if it is set,
/// then Weir as `make test` installed it.
pub(super) fn search_path(extension: &str) -> String {
    let staged: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "target", "stage", "lualib"].iter().collect();
    let dirs = std::env::var("LUALIB").into_iter().chain([staged.display().to_string()]);
    dirs.map(|dir| format!("{dir}/?.{extension}")).collect::<Vec<_>>().join(";")
}

/// The library under test.
pub fn library() -> PathBuf {
    search_path("so")
        .split(';')
        .map(|pattern| PathBuf::from(pattern.replace('?', "weir_edge")))
        .find(|file| file.exists())
        .expect("weir_edge.so is installed: run the tests with `make test`")
}

/// `load_module` lines, where the Lua module is not built in.
pub(super) static MODULES: LazyLock<String> = LazyLock::new(|| {
    let Output { stderr, .. } =
        Command::new(program()).arg("-V").output().expect("nginx -V prints how it was built");
    let built = String::from_utf8_lossy(&stderr).into_owned();
    let built_in = built
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("--add-module="))
        .any(|module| module.contains("ngx_lua") || module.contains("lua-nginx-module"));
    if built_in {
        return String::new();
    }
    let modules = built
        .split_whitespace()
        .find_map(|word| word.strip_prefix("--modules-path="))
        .unwrap_or("/usr/lib/nginx/modules");
    // The kit is a module of its own where it was not built in.
    ["ndk_http_module.so", "ngx_http_lua_module.so"]
        .iter()
        .map(|module| format!("load_module {modules}/{module};\n"))
        .collect()
});
