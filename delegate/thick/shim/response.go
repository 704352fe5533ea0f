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

const (
	maxHeader    = 16 << 10 // of all header lines of a response, and of its trailer
	maxChunkLine = 1 << 10
)

// A response is a complete HTTP/1 response.
type response struct {
	status     int
	retryAfter time.Duration // -1 when there is none in seconds
	body       []byte
	unframed   bool // the body ended with the connection, so it may be incomplete
}

// readResponse reads the response to a POST or a GET on a connection that is
// closed after it. The error is errMalformed for a response that is invalid or
// too large, [io.ErrUnexpectedEOF] for one that ends too early, and otherwise that
// of the reader.
func readResponse(from io.Reader) (*response, error) {
	m := &incoming{r: bufio.NewReader(from), left: maxHeader}
	for {
		r, framing, err := m.head()
		if err != nil {
			return nil, err
		}
		if r.status < 200 && r.status != 101 {
			continue // informational; maxHeader limits all of them together
		}
		if r.body, err = m.body(r, framing); err != nil {
			return nil, err
		}
		return r, nil
	}
}

// An incoming response is read from r. Its lines may have left more bytes.
type incoming struct {
	r    *bufio.Reader
	left int
}

// A framing says where a body ends. The zero value is a body that ends with the
// connection.
type framing struct {
	chunked bool
	length  string
}

func (m *incoming) head() (*response, framing, error) {
	line, err := m.line()
	if err != nil {
		return nil, framing{}, err
	}
	r := &response{retryAfter: -1}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	r.status, err = strconv.Atoi(code)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || len(code) != 3 || err != nil || r.status < 100 {
		return nil, framing{}, malformed("invalid status line")
	}
	var f framing
	for {
		line, err := m.line()
		if err != nil || line == "" {
			return r, f, err
		}
		name, value, found := strings.Cut(line, ":")
		if !found || name == "" || strings.ContainsAny(name, " \t") {
			return nil, f, malformed("invalid header line")
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "content-length":
			if f.length != "" && f.length != value || value == "" {
				return nil, f, malformed("contradictory lengths")
			}
			f.length = value
		case "transfer-encoding":
			if f.chunked || !strings.EqualFold(value, "chunked") || version == "HTTP/1.0" {
				return nil, f, malformed("unknown transfer coding")
			}
			f.chunked = true
		case "retry-after":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				r.retryAfter = time.Duration(n) * time.Second
			}
		}
	}
}

func (m *incoming) body(r *response, f framing) ([]byte, error) {
	switch {
	case r.status == 101 || f.chunked && f.length != "":
		return nil, malformed("contradictory header")
	case r.status == 204 || r.status == 304:
		return nil, nil
	case f.chunked:
		return m.chunks()
	case f.length != "":
		n, err := strconv.ParseUint(f.length, 10, 63)
		if err != nil {
			return nil, malformed("invalid length")
		}
		return m.bytes(nil, n)
	}
	r.unframed = true
	body, err := io.ReadAll(io.LimitReader(m.r, wire.MaxBody+1))
	if len(body) > wire.MaxBody {
		return nil, malformed("the body is too long")
	}
	return body, err
}

// chunks reads a body in the chunked transfer coding, and its trailer.
func (m *incoming) chunks() (body []byte, err error) {
	for {
		m.left = maxChunkLine
		line, err := m.line()
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(line, ";") // extensions follow
		n, err := strconv.ParseUint(strings.TrimRight(size, " \t"), 16, 63)
		if err != nil {
			return nil, malformed("invalid chunk size")
		}
		if n == 0 {
			break
		}
		if body, err = m.bytes(body, n); err != nil {
			return nil, err
		}
		if line, err := m.line(); err != nil {
			return nil, err
		} else if line != "" {
			return nil, malformed("a chunk is longer than its size")
		}
	}
	m.left = maxHeader
	for {
		if line, err := m.line(); err != nil || line == "" {
			return body, err
		}
	}
}

// bytes appends the next n bytes to body. It allocates only what has arrived, not
// what a header claims.
func (m *incoming) bytes(body []byte, n uint64) ([]byte, error) {
	if n > uint64(wire.MaxBody-len(body)) {
		return nil, malformed("the body is too long")
	}
	part, err := io.ReadAll(io.LimitReader(m.r, int64(n)))
	if err == nil && uint64(len(part)) < n {
		err = io.ErrUnexpectedEOF
	}
	if body == nil {
		return part, err
	}
	return append(body, part...), err
}

// line reads a line and removes its end.
func (m *incoming) line() (string, error) {
	var line []byte
	for {
		part, err := m.r.ReadSlice('\n')
		if m.left -= len(part); m.left < 0 {
			return "", malformed("a line is too long")
		}
		line = append(line, part...)
		switch {
		case err == nil:
			line = line[:len(line)-1]
			if n := len(line); n > 0 && line[n-1] == '\r' {
				line = line[:n-1]
			}
			return string(line), nil
		case errors.Is(err, io.EOF):
			return "", io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
}

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }
