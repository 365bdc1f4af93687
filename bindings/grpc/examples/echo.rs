//! A bare server that gives back what it gets, with the windows of the front: what copies through
//! the front are measured beside (`tests/python/figures.py`).
//!
//! It serves one port of loopback, which it prints, until it is killed.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use shmccl_grpc::wire::gpu_sim::MemcpyRequest;
use shmccl_grpc::wire::pool::{ReadRequest, ReadResponse, WriteRequest, WriteResponse};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{ClientStreamingService, Grpc, ServerStreamingService, UnaryService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

type Answer<T> = std::pin::Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

struct Echo;

impl UnaryService<MemcpyRequest> for Echo {
    type Response = MemcpyRequest;
    type Future = Answer<MemcpyRequest>;

    fn call(&mut self, request: tonic::Request<MemcpyRequest>) -> Self::Future {
        Box::pin(async { Ok(tonic::Response::new(request.into_inner())) })
    }
}

impl ClientStreamingService<WriteRequest> for Echo {
    type Response = WriteResponse;
    type Future = Answer<WriteResponse>;

    fn call(&mut self, request: tonic::Request<Streaming<WriteRequest>>) -> Self::Future {
        Box::pin(async {
            let (mut chunks, mut len) = (request.into_inner(), 0);
            while let Some(chunk) = chunks.message().await? {
                len += chunk.data.len() as u64;
            }
            Ok(tonic::Response::new(WriteResponse { len }))
        })
    }
}

impl ServerStreamingService<ReadRequest> for Echo {
    type Response = ReadResponse;
    type ResponseStream = std::pin::Pin<Box<dyn Stream<Item = Result<ReadResponse, Status>> + Send>>;
    type Future = Answer<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<ReadRequest>) -> Self::Future {
        let chunk = Bytes::from(vec![0; 1 << 20]);
        let n = request.into_inner().len >> 20;
        let chunks = (0..n).map(move |_| Ok(ReadResponse { data: chunk.clone() }));
        Box::pin(async {
            Ok(tonic::Response::new(Box::pin(tokio_stream::iter(chunks)) as Self::ResponseStream))
        })
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    const MOST: usize = 128 << 20;
    Ok(match request.uri().path() {
        "/echo/Unary" => {
            let codec = ProstCodec::<MemcpyRequest, MemcpyRequest>::default();
            Grpc::new(codec).max_decoding_message_size(MOST).unary(Echo, request).await
        }
        "/echo/Up" => {
            Grpc::new(ProstCodec::<WriteResponse, WriteRequest>::default())
                .client_streaming(Echo, request)
                .await
        }
        _ => {
            Grpc::new(ProstCodec::<ReadResponse, ReadRequest>::default())
                .server_streaming(Echo, request)
                .await
        }
    })
}

#[tokio::main(worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut http = Builder::new(TokioExecutor::new());
        http.initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .max_frame_size(1 << 20);
        let connection = http.serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(async { connection.await.unwrap_or_default() });
    }
}
