//! What peers and files may hold, at random: nothing panics, hangs, or takes more memory than it says.
//!
//! `ASTERISM_FUZZ_INPUTS` sets the number of inputs; each is drawn from its own number, which a failure prints.

use std::{env, time::Instant};

use asterism_transport::{
    Frame, FrameError, FrameHeader, FrameKind, PayloadType,
    certificates::{CertificateAuthority, CertificateInfo, MemberRole, Validity},
    codec::{self, FIRST_RESERVATION, FrameDecoder, HEADER_BYTES, RESERVATION_GROWTH},
    join::{JoinAnswer, JoinRequest, JoinToken, Refusal, RenewRequest, WantedHost},
    sim::Draw,
};
use bytes::Bytes;
use rkyv::util::AlignedVec;

const DEFAULT_INPUTS: u64 = 200_000;
/// Parsing a certificate takes as long as a hundred frames.
const CERTIFICATES_EACH: u64 = 100;
/// Far beyond what one input takes, even on a busy machine.
const SECONDS_AN_INPUT: f64 = 10.0;

fn inputs() -> u64 {
    let named = env::var("ASTERISM_FUZZ_INPUTS").ok();
    named.map_or(DEFAULT_INPUTS, |inputs| inputs.parse().expect("ASTERISM_FUZZ_INPUTS is a number"))
}

/// Runs `check` on each input's own draw.
fn each(name: &str, inputs: u64, mut check: impl FnMut(&mut Draw, u64)) {
    let start = Instant::now();
    for input in 0..inputs {
        let began = Instant::now();
        check(&mut Draw::new(input), input);
        assert!(began.elapsed().as_secs_f64() < SECONDS_AN_INPUT, "input {input} took {:?}", began.elapsed());
    }
    let rate = inputs as f64 / start.elapsed().as_secs_f64();
    println!("{name}: {inputs} inputs, {rate:.0} a second");
}

fn frame(draw: &mut Draw) -> Frame {
    let (kinds, types) = (
        [FrameKind::Control, FrameKind::Request, FrameKind::Response, FrameKind::Data],
        [PayloadType::None, PayloadType::F32, PayloadType::Bf16, PayloadType::Bytes],
    );
    let payload_type = types[draw.below(4)];
    let header = FrameHeader { kind: kinds[draw.below(4)], payload_type, correlation: draw.number() };
    let length = draw.below(150);
    let mut meta = AlignedVec::new();
    meta.extend_from_slice(&draw.bytes(length));
    let length = draw.below(40) * [0, 4, 2, 1][payload_type as usize];
    Frame::new(header, meta, draw.bytes(length).into())
}

fn wire(frame: &Frame) -> Vec<u8> {
    codec::encode(frame.clone()).expect("the frame is valid").concat()
}

/// What a decoder makes of `bytes`, fed in pieces, and where it stood.
fn decode(draw: &mut Draw, bytes: &[u8], input: u64) -> (Vec<Frame>, Result<bool, FrameError>) {
    let (mut decoder, mut frames, mut rest) = (FrameDecoder::new(), Vec::new(), Bytes::copy_from_slice(bytes));
    let largest = [1, 7, 64, 200, 4096][draw.below(5)];
    while !rest.is_empty() {
        let mut piece = rest.split_to(rest.len().min(1 + draw.below(largest)));
        while !piece.is_empty() {
            let before = piece.len();
            match decoder.decode(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => assert!(piece.is_empty(), "input {input}: the decoder stopped before the end"),
                Err(error) => return (frames, Err(error)),
            }
            assert!(piece.len() < before, "input {input}: the decoder stands still");
            let most = 2 * FIRST_RESERVATION.max(RESERVATION_GROWTH * bytes.len());
            let reserved = decoder.reserved_bytes();
            assert!(reserved <= most, "input {input}: {reserved} bytes reserved for {}", bytes.len());
        }
    }
    (frames, Ok(decoder.is_between_frames()))
}

#[test]
fn frames() {
    let mut outcomes = [0u64; 3];
    each("frames", inputs(), |draw, input| {
        let mut bytes = Vec::new();
        let mut intact = Vec::new();
        match draw.below(4) {
            0 => {
                let length = draw.below(300);
                bytes = draw.bytes(length);
            }
            1 => {
                // A good start, and then anything.
                let length = draw.below(300);
                bytes = wire(&frame(draw));
                bytes.truncate([8, 32, HEADER_BYTES][draw.below(3)]);
                bytes.extend(draw.bytes(length));
            }
            2 => {
                (0..1 + draw.below(3)).for_each(|_| bytes.extend(wire(&frame(draw))));
                draw.damage(&mut bytes);
            }
            _ => {
                intact = (0..1 + draw.below(3)).map(|_| frame(draw)).collect();
                intact.iter().for_each(|frame| bytes.extend(wire(frame)));
            }
        }
        let (frames, end) = decode(draw, &bytes, input);
        let again = frames.iter().flat_map(wire).collect::<Vec<_>>();
        assert!(bytes.starts_with(&again), "input {input}: frames do not encode to what they came from");
        if !intact.is_empty() {
            assert_eq!((frames.len(), &end), (intact.len(), &Ok(true)), "input {input}");
        }
        outcomes[end.map_or(0, |whole| 1 + usize::from(whole))] += 1;
    });
    assert!(outcomes.iter().all(|seen| *seen > 0), "refused, cut and whole: {outcomes:?}");
}

#[test]
fn join_messages() {
    let request = JoinRequest {
        secret: [7; 32],
        node: "node-1".into(),
        hosts: (0..3).map(|host| WantedHost { name: format!("context-{host}"), public_key: vec![4; 65] }).collect(),
    };
    let renewal = RenewRequest { hosts: request.hosts.clone() };
    let answers = [
        JoinAnswer::Issued {
            ca: "-----BEGIN".repeat(9),
            certificates: vec!["one".into(), "two".repeat(40)],
            revoked: vec!["0a".into()],
        },
        JoinAnswer::Refused(Refusal::UnknownToken),
        JoinAnswer::Refused(Refusal::ExpiredToken { seconds: 3 }),
        JoinAnswer::Refused(Refusal::Unavailable { cause: "the disk is full".into() }),
    ];
    let mut read = [0u64; 2];
    each("join messages", inputs() / 4, |draw, input| {
        let mut bytes = match draw.below(4) {
            0 => request.to_bytes().to_vec(),
            1 => renewal.to_bytes().to_vec(),
            2 => answers[draw.below(answers.len())].to_bytes().to_vec(),
            _ => {
                let length = draw.below(400);
                draw.bytes(length)
            }
        };
        draw.damage(&mut bytes);
        let request = JoinRequest::from_bytes(&bytes);
        if let Ok(request) = &request {
            let again = JoinRequest::from_bytes(&request.to_bytes());
            assert!(again.as_ref() == Ok(request), "input {input}: a request changes as it is written again");
        }
        let renewal = RenewRequest::from_bytes(&bytes);
        if let Ok(renewal) = &renewal {
            assert_eq!(RenewRequest::from_bytes(&renewal.to_bytes()).as_ref(), Ok(renewal), "input {input}");
        }
        let answer = JoinAnswer::from_bytes(&bytes);
        if let Ok(answer) = &answer {
            assert_eq!(JoinAnswer::from_bytes(&answer.to_bytes()).as_ref(), Ok(answer), "input {input}");
        }
        read[usize::from(request.is_ok() || renewal.is_ok() || answer.is_ok())] += 1;
    });
    assert!(read.iter().all(|seen| *seen > 0), "refused and read: {read:?}");
}

#[test]
fn certificates_and_tokens() {
    let start = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
    let validity = Validity::starting(start, std::time::Duration::from_secs(3600));
    let authority = CertificateAuthority::create("test", validity).expect("the name is valid");
    let host = authority.issue(MemberRole::Context, "host", validity).expect("the name is valid");
    let der = der(&host.certificate);
    let token = JoinToken::create(authority.certificate()).expect("it is a CA certificate").reveal();
    each("certificates", inputs() / CERTIFICATES_EACH, |draw, _| {
        let mut damaged = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            draw.damage(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (certificate, key) = (damaged(&host.certificate), damaged(&host.key));
        let text = damaged(&token);
        // Whatever these say, they say it.
        let _ = CertificateInfo::from_pem(&certificate);
        let _ = CertificateAuthority::from_pem(authority.certificate(), &key);
        let _ = JoinToken::create(&certificate);
        if let Ok(read) = text.parse::<JoinToken>() {
            assert_eq!(read.reveal(), text.trim().to_lowercase());
        }
        let mut der = der.clone();
        draw.damage(&mut der);
        let _ = CertificateInfo::from_der(&der);
    });
}

/// The bytes within a PEM text.
fn der(pem: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject;
    let certificate = rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes());
    certificate.expect("it was just made").to_vec()
}
