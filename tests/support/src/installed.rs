//! A C library as a user has it: installed below a prefix, and found by pkg-config.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library of this build that was installed.
#[derive(Debug)]
pub struct InstalledLibrary {
    prefix: PathBuf,
    package: &'static str,
    name: &'static str,
}

impl InstalledLibrary {
    /// Installs the library `name` below `prefix`, by the script `install` in `directory`.
    /// pkg-config knows it as `package`.
    ///
    /// # Panics
    /// Panics where that fails.
    #[must_use]
    pub fn install(directory: &str, prefix: PathBuf, package: &'static str, name: &'static str) -> Self {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let mut command = Command::new(Path::new(directory).join("install"));
        command.arg(&prefix).args(["--profile", profile]);
        assert!(command.status().unwrap().success(), "{command:?}");
        Self { prefix, package, name }
    }

    /// Returns the folder below which it was installed. Programs are put there, too.
    #[must_use]
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Returns what pkg-config says of it.
    ///
    /// # Panics
    /// Panics where it says nothing.
    #[must_use]
    pub fn flags(&self, asked: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(asked).arg(self.package).env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"));
        let output = command.output().expect("pkg-config is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Has a program in C or C++ compiled with `more` flags behind the others. Returns what the
    /// compiler says, and the path of the executable.
    ///
    /// # Panics
    /// Panics where there is no compiler, or the source has no name.
    #[must_use]
    pub fn compile(&self, source: &Path, is_static: bool, more: &[&str]) -> (Output, PathBuf) {
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let (compiler, standard) = if is_c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
        let suffix = if is_static { "_static" } else { "" };
        let name = source.file_stem().unwrap().to_str().unwrap();
        let target = self.prefix.join(format!("{name}{suffix}"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", standard, "-D_GNU_SOURCE"]);
        command.arg(source).arg("-o").arg(&target);
        if is_static {
            let own = format!("-l{}", self.name);
            command.args(self.flags(&["--cflags"]));
            command.arg(self.prefix.join(format!("lib/lib{}.a", self.name)));
            command.args(self.flags(&["--static", "--libs-only-l"]).iter().filter(|flag| **flag != own));
        } else {
            command.args(self.flags(&["--cflags", "--libs"]));
            command.arg(format!("-Wl,-rpath,{}", self.prefix.join("lib").display()));
        }
        (command.args(more).output().expect("the compiler is there"), target)
    }

    /// Has a program compiled as [`compile`](Self::compile) does, and returns the executable.
    ///
    /// # Panics
    /// Panics where the compiler refuses it.
    #[must_use]
    pub fn compiled(&self, source: &Path, is_static: bool, more: &[&str]) -> PathBuf {
        let (output, target) = self.compile(source, is_static, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        target
    }

    /// Returns the symbols that the shared library exports, in order.
    ///
    /// # Panics
    /// Panics where `nm` does not run.
    #[must_use]
    pub fn exported(&self) -> Vec<String> {
        let library = self.prefix.join(format!("lib/lib{}.so", self.name));
        let output = Command::new("nm").args(["-D", "--defined-only", "-P"]).arg(library).output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        let mut exported: Vec<_> =
            listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        exported.sort_unstable();
        exported
    }
}
