//! `shmccl-grpc`: serves the pool of this user over gRPC, until it is interrupted.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use shmccl_grpc::dialect::{PRESETS, SETTINGS};
use shmccl_grpc::listen::ListenSpec;
use shmccl_grpc::start::{FrontOptions, SecretFiles, serve};

/// Serve the pool of this user over gRPC, to clients of the course and others, until Ctrl-C
#[derive(Debug, Parser)]
#[command(name = "shmccl-grpc", version, after_help = help(), max_term_width = 100)]
struct FrontArgs {
    /// Where to listen, and in which dialect: `unix` is the socket `grpc` in the runtime directory,
    /// for processes of this user; or `unix:PATH`; or `127.0.0.1:60050`, for this user as well
    /// [default: unix]
    #[arg(long, value_name = "PLACE[,DIALECT][,SETTING=VALUE]...")]
    listen: Vec<ListenSpec>,
    /// The longest message, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_message: u16,
    /// The certificates for listeners that other hosts can reach, as PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "token_file"])]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The token that calls from other hosts carry as `authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    token_file: Option<PathBuf>,
    /// Show the pool and the jobs of this user on a page, at this loopback address
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:0", value_parser = parse_loopback)]
    page: Option<SocketAddr>,
    /// Show the page, and serve nothing else
    #[arg(long, requires = "page", conflicts_with = "listen")]
    only_page: bool,
}

/// Reads an address that no other host can reach.
fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let expected = "expected a loopback address and a port, such as 127.0.0.1:8080";
    address.filter(|address| address.ip().is_loopback()).ok_or_else(|| expected.to_owned())
}

fn help() -> String {
    let mut text = "Dialects, where clients of the course contradict each other:\n".to_owned();
    for (_, name, what) in PRESETS {
        text += &format!("  {name:<10} {what}\n");
    }
    text += "Settings, on or off, behind a dialect:\n";
    for (name, what) in SETTINGS {
        text += &format!("  {name:<10} {what}\n");
    }
    text + "Each device listens as well, at a port or socket of its own, which is printed as it comes.\n"
}

fn main() -> ExitCode {
    let args = FrontArgs::parse();
    let secrets = match (args.tls_cert.clone(), args.tls_key.clone(), args.token_file.clone()) {
        (Some(certificate), Some(key), Some(token)) => Some(SecretFiles { certificate, key, token }),
        _ => None,
    };
    let max_message = (usize::from(args.max_message) << 20) + (64 << 10);
    let FrontArgs { listen, page, only_page, .. } = args;
    let options = FrontOptions { listen, max_message, secrets, page, only_page };
    match serve(&options, |text| eprintln!("shmccl-grpc: {text}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shmccl-grpc: {error:#}");
            ExitCode::FAILURE
        }
    }
}
