"""Calls a method with an empty message, so many times: calls.py TARGET METHOD AUTHORIZATION COUNT

A line a call: the status code, and the bytes of grpc-status-details-bin in hexadecimal.
"""

import sys

import grpc

target, method, authorization, count = sys.argv[1:]
metadata = [("authorization", authorization)] if authorization else []
with grpc.insecure_channel(target) as channel:
    call = channel.unary_unary(method)
    for _ in range(int(count)):
        try:
            call(b"", metadata=metadata, timeout=30)
            print("OK ")
        except grpc.RpcError as error:
            details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
            print(error.code().name, details.hex())
