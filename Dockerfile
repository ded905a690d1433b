# The library is built here and copied out: the image that runs has no
# toolchain.
FROM rust:1-bookworm AS build
WORKDIR /weir
COPY . .
RUN make install PREFIX=/out

FROM openresty/openresty:bookworm
COPY --from=build /out/lualib/ /usr/local/openresty/site/lualib/
