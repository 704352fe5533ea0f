package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// maxResponse is the size limit of a response: of its body and its header.
const maxResponse = wire.MaxBody + 64<<10

// A response is a whole HTTP response.
type response struct {
	status     int
	retryAfter time.Duration // -1 when there is none in seconds
	body       []byte
	unframed   bool // the body ended with the connection, so it may be incomplete
}

// readResponse reads the response to a request of HTTP/1.0. The error is errMalformed for a
// response that is invalid or too large, [io.ErrUnexpectedEOF] for one that ends too early,
// and otherwise that of the reader. One that ends within a line of its header is invalid:
// daemons write the header at once.
func readResponse(from io.Reader) (*response, error) {
	limited := &io.LimitedReader{R: from, N: maxResponse}
	r, err := parse(textproto.NewReader(bufio.NewReader(limited)))
	var invalid textproto.ProtocolError
	switch {
	case limited.N <= 0:
		return nil, malformed("it is too long")
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case errors.As(err, &invalid):
		return nil, malformed("invalid header line")
	case err != nil:
		return nil, err
	}
	return r, nil
}

func parse(in *textproto.Reader) (*response, error) {
	start, err := in.ReadLine()
	if err != nil {
		return nil, err
	}
	version, rest, _ := strings.Cut(start, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || len(code) != 3 || err != nil || status < 200 {
		return nil, malformed("invalid status line")
	}
	header, err := in.ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	if header.Get("Transfer-Encoding") != "" {
		return nil, malformed("HTTP/1.0 has no transfer coding")
	}
	r := &response{status: status, retryAfter: -1}
	if n, err := strconv.ParseUint(header.Get("Retry-After"), 10, 16); err == nil {
		r.retryAfter = time.Duration(n) * time.Second
	}
	if status == 204 || status == 304 {
		return r, nil // whatever follows is no body
	}
	length, framed := header["Content-Length"]
	if !framed {
		r.unframed = true
		r.body, err = io.ReadAll(in.R)
		return r, err
	}
	n, err := strconv.ParseUint(length[0], 10, 63)
	if err != nil || n > wire.MaxBody {
		return nil, malformed("invalid length")
	}
	// This allocates only what has arrived, not what the number claims.
	r.body, err = io.ReadAll(io.LimitReader(in.R, int64(n)))
	if err == nil && uint64(len(r.body)) < n {
		err = io.ErrUnexpectedEOF
	}
	return r, err
}

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }
