//! The `asterism` program.

fn main() -> std::process::ExitCode {
    asterism::cli::main()
}
