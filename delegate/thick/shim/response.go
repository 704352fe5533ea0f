package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// maxResponse is the size limit of a response: of its body, its header, and the lines
// between the chunks of its body.
const maxResponse = wire.MaxBody + 64<<10

// A response is a complete HTTP/1 response.
type response struct {
	status     int
	retryAfter time.Duration // -1 when there is none in seconds
	body       []byte
	unframed   bool // the body ended with the connection, so it may be incomplete
}

// readResponse reads the response to a POST on a connection that is closed after it.
// The error is errMalformed for a response that is invalid or too large,
// [io.ErrUnexpectedEOF] for one that ends too early, and otherwise that of the reader.
func readResponse(from io.Reader) (*response, error) {
	limited := &io.LimitedReader{R: from, N: maxResponse}
	r, err := parse(bufio.NewReader(limited))
	switch {
	case limited.N <= 0:
		return nil, malformed("it is too long")
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	return r, nil
}

func parse(in *bufio.Reader) (*response, error) {
	for {
		start, err := line(in)
		if err != nil {
			return nil, err
		}
		version, rest, _ := strings.Cut(start, " ")
		code, _, _ := strings.Cut(rest, " ")
		status, err := strconv.Atoi(code)
		if version != "HTTP/1.1" && version != "HTTP/1.0" || len(code) != 3 || err != nil || status < 100 {
			return nil, malformed("invalid status line")
		}
		fields, err := header(in)
		if err != nil {
			return nil, err
		}
		if status < 200 {
			continue // informational
		}
		r := &response{status: status, retryAfter: -1}
		if n, err := strconv.ParseUint(fields["retry-after"], 10, 16); err == nil {
			r.retryAfter = time.Duration(n) * time.Second
		}
		length, framed := fields["content-length"]
		switch coding := fields["transfer-encoding"]; {
		case status == 204 || status == 304:
		case strings.EqualFold(coding, "chunked") && version == "HTTP/1.1":
			r.body, err = chunks(in)
		case coding != "":
			err = malformed("unknown transfer coding")
		case framed:
			r.body, err = body(in, length, 10)
		default:
			r.unframed = true
			r.body, err = io.ReadAll(in)
		}
		return r, err
	}
}

// line reads a line without its end. Package textproto is of no use: it takes half a
// line, of a daemon that has died, for a whole one.
func line(in *bufio.Reader) (string, error) {
	text, err := in.ReadString('\n')
	return strings.TrimRight(text, "\r\n"), err
}

// header reads header lines up to an empty one. The names are in lower case.
func header(in *bufio.Reader) (map[string]string, error) {
	fields := map[string]string{}
	for {
		text, err := line(in)
		if err != nil || text == "" {
			return fields, err
		}
		name, value, found := strings.Cut(text, ":")
		if !found || name == "" || strings.ContainsAny(name, " \t") {
			return nil, malformed("invalid header line")
		}
		fields[strings.ToLower(name)] = strings.Trim(value, " \t")
	}
}

// body reads as many bytes as the number length says. It allocates only what has
// arrived, not what the number claims.
func body(in io.Reader, length string, base int) ([]byte, error) {
	n, err := strconv.ParseUint(length, base, 63)
	if err != nil || n > wire.MaxBody {
		return nil, malformed("invalid length")
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(n)))
	if err == nil && uint64(len(data)) < n {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// chunks reads a body in the chunked transfer coding, and its trailer.
func chunks(in *bufio.Reader) (all []byte, err error) {
	for {
		text, err := line(in)
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(text, ";") // extensions follow
		part, err := body(in, strings.TrimRight(size, " \t"), 16)
		if err != nil {
			return nil, err
		}
		if len(part) == 0 {
			_, err := header(in)
			return all, err
		}
		all = append(all, part...)
		switch end, err := line(in); {
		case err != nil:
			return nil, err
		case end != "":
			return nil, malformed("a chunk is longer than its size")
		}
	}
}

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }
