//! What GPUs lend each other arrives as it was lent.

use asterism_kernels::prelude::*;
use asterism_kernels::{Cuda, CudaOptions, DType};

use super::{draw, gpu};

/// Memory that was lent is drawn upon again at once: the copies must be made by then.
#[test]
fn lent_tensors_arrive_as_they_were_lent() {
    let Some(gpu) = gpu() else { return };
    let open = |device| Cuda::new(CudaOptions::plain(device, DType::Bf16));
    let others: Vec<Cuda> = (0..2).map_while(|device| open(device).ok()).collect();
    println!("to {} GPUs, the first by another stream", others.len());
    for (seed, other) in (0..24).zip(others.iter().cycle()) {
        let (values, tensor) = draw(gpu, &[8, 2000, 64], seed);
        let exported = gpu.export(vec![tensor.clone(), tensor]).unwrap();
        let got = exported(other).unwrap();
        drop(exported);
        let _over = [draw(gpu, &[8, 2000, 64], seed + 100), draw(gpu, &[8, 2000, 64], seed + 200)];
        for got in &got {
            assert!(other.device().download(got).unwrap() == values, "round {seed}");
        }
    }
    // Small ones back and forth, many at a time: each arrives as it was lent, and its memory is not used again before.
    for (seed, other) in (0..400).zip(others.iter().rev().cycle()) {
        let (values, tensor) = draw(gpu, &[1 + seed % 16, 4, 130], seed as u64);
        let there = gpu.export(vec![tensor]).unwrap()(other).unwrap();
        let back = other.export(there).unwrap()(gpu).unwrap();
        let _over = draw(gpu, &[16, 4, 130], 1000 + seed as u64);
        assert!(gpu.device().download(&back[0]).unwrap() == values, "round {seed} of small ones");
    }
}

/// Where a device counts what it lends another number lay before.
#[test]
fn what_is_lent_first_arrives_too() {
    if gpu().is_none() {
        return;
    }
    let open = |device| Cuda::new(CudaOptions::plain(device, DType::Bf16));
    let others: Vec<Cuda> = (0..2).map_while(|device| open(device).ok()).collect();
    for (seed, other) in (0..12).zip(others.iter().cycle()) {
        let fresh = open(0).unwrap();
        // Numbers where its memory is taken from, and what keeps its queue busy.
        drop([1; 200].map(|rows| draw(&fresh, &[rows, 8], seed)));
        let large = fresh.device().random(&[1 << 27], DType::Bf16, 3, 1.0).unwrap();
        let _busy = [(); 8].map(|()| fresh.device().cast(&large, DType::F32).unwrap());
        let (values, tensor) = draw(&fresh, &[3, 4, 130], seed);
        let got = fresh.export(vec![tensor]).unwrap()(other).unwrap();
        assert!(other.device().download(&got[0]).unwrap() == values, "round {seed}");
    }
}
