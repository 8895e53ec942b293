//! What every process has to choose alike. Needs a GPU.

use asterism_kernels::cuda::CudaLinear;
use asterism_kernels::{Cuda, CudaOptions, DType};

use super::{draw, gpu};

/// What was chosen for products of several shapes, and the bits of those by rows of every class, as one line.
fn chosen(gpu: &Cuda) -> String {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for (n, k) in [(6144, 4096), (512, 256), (768, 256), (256, 768), (288, 4096)] {
        let (x, w) = (draw(gpu, &[2048, k], 1).1, draw(gpu, &[n, k], 2).1);
        let linear = CudaLinear::of(w, None).unwrap();
        let residual = draw(gpu, &[2048, n], 3).1;
        for rows in [1, 16, 17, 64, 100, 700, 2048] {
            let (x, residual) = (x.rows(0, rows).unwrap(), residual.rows(0, rows).unwrap());
            let y = gpu.products().linear(gpu.device(), &x, &linear, Some(residual)).unwrap();
            let values = gpu.device().download(&y).unwrap();
            digest = values
                .iter()
                .fold(digest, |digest, value| (digest ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3));
        }
    }
    format!("bits {digest:016x} of {:?}", gpu.products().choices())
}

/// What another process runs for the test below.
#[test]
#[ignore = "the child of processes_choose_alike_alone_and_together"]
fn print_what_is_chosen() {
    let gpu = Cuda::new(CudaOptions::plain(0, DType::Bf16)).unwrap();
    println!("\n{}", chosen(&gpu));
}

/// Hosts of one cluster have to compute the same bits, whoever else uses their GPU when they start.
#[test]
fn processes_choose_alike_alone_and_together() {
    let Some(_) = gpu() else { return };
    let start = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "chosen::print_what_is_chosen", "--ignored", "--nocapture"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let line = |child: std::process::Child| {
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        text.lines().find(|line| line.starts_with("bits ")).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let alone = line(start());
    println!("{alone}");
    let together: Vec<_> = (0..4).map(|_| start()).collect();
    for child in together {
        assert_eq!(line(child), alone);
    }
}
