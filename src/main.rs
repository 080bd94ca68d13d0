//! The `bimetal` command.

fn main() {
    println!("bimetal {}", env!("CARGO_PKG_VERSION"));
}
