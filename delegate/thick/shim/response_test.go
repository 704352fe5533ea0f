package shim

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// responses are texts, and what they are read as. An empty body with a zero
// status is an error, which is errMalformed or io.ErrUnexpectedEOF.
var responses = []struct {
	name, text string
	status     int
	body       string
	err        error
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
	{"odd case, no reason, bare line feeds", "HTTP/1.1 500\ncOnTeNt-LENGTH:2\n\nhi", 500, "hi", nil},
	{"more than the length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi there", 200, "hi", nil},
	{"length twice", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
	{"up to the end", "HTTP/1.0 200 OK\r\n\r\nhi", 200, "hi", nil},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x=y\r\ni\r\n0\r\n\r\n", 200, "hi", nil},
	{"chunks and a trailer", "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\nX: y\r\n\r\n", 200, "hi", nil},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", nil},
	{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", nil},

	{"nothing", "", 0, "", io.ErrUnexpectedEOF},
	{"half a status", "HTTP/1.1 20", 0, "", io.ErrUnexpectedEOF},
	{"half a header", "HTTP/1.1 200 OK\r\nContent-Le", 0, "", io.ErrUnexpectedEOF},
	{"no end of the header", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", 0, "", io.ErrUnexpectedEOF},
	{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", 0, "", io.ErrUnexpectedEOF},
	{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhi", 0, "", io.ErrUnexpectedEOF},
	{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", 0, "", io.ErrUnexpectedEOF},
	{"no end of the trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n", 0, "", io.ErrUnexpectedEOF},
	{"interim only", "HTTP/1.1 100 Continue\r\n\r\n", 0, "", io.ErrUnexpectedEOF},

	{"not HTTP", "SSH-2.0-OpenSSH_9.6\r\n\r\n", 0, "", errMalformed},
	{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", 0, "", errMalformed},
	{"a status of two digits", "HTTP/1.1 20 OK\r\n\r\n", 0, "", errMalformed},
	{"a negative status", "HTTP/1.1 -20 OK\r\n\r\n", 0, "", errMalformed},
	{"no header line", "HTTP/1.1 200 OK\r\nhello\r\n\r\n", 0, "", errMalformed},
	{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 0, "", errMalformed},
	{"another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", 0, "", errMalformed},
	{"a size that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 0, "", errMalformed},
	{"a chunk that goes on", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhi\r\n0\r\n\r\n", 0, "", errMalformed},
	{"a long line", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxResponse) + "\r\n\r\n", 0, "", errMalformed},
	{"many lines", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxResponse/6) + "\r\n", 0, "", errMalformed},
	{"interim without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxResponse/20), 0, "", errMalformed},
	{"a long body", "HTTP/1.1 200 OK\r\nContent-Length: 4194305\r\n\r\n", 0, "", errMalformed},
	{"a length beyond numbers", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", 0, "", errMalformed},
	{"a long chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", 0, "", errMalformed},
	{"a long body up to the end", "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", maxResponse), 0, "", errMalformed},
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := readResponse(strings.NewReader(tt.text))
			if tt.err != nil || err != nil {
				if !errors.Is(err, tt.err) {
					t.Errorf("%v, want %v", err, tt.err)
				}
				return
			}
			if r.status != tt.status || string(r.body) != tt.body {
				t.Errorf("%d %q, want %d %q", r.status, r.body, tt.status, tt.body)
			}
		})
	}
}

// A response without end is refused, not read for ever.
func TestResponseIsBounded(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"", "HTTP/1.1 200 OK\r\nA: ", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"} {
		from := &endless{head: head}
		if _, err := readResponse(from); !errors.Is(err, errMalformed) {
			t.Errorf("%q: %v", head, err)
		}
		if from.n > maxResponse {
			t.Errorf("%q: read %d bytes", head, from.n)
		}
	}
}

// An endless reader reads head, and then the same for ever.
type endless struct {
	head string
	n    int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.head)
	e.head = e.head[n:]
	for i := n; i < len(p); i++ {
		p[i] = 'x'
	}
	e.n += len(p)
	return len(p), nil
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, "-1": -1, "99999999999": -1, "Fri, 31 Dec 1999 23:59:59 GMT": -1, "": -1,
	} {
		r, err := readResponse(strings.NewReader("HTTP/1.1 503 X\r\nretry-after: " + value + "\r\n\r\n"))
		if err != nil || r.retryAfter != want {
			t.Errorf("%q: %v, %v", value, r, err)
		}
	}
}

// FuzzResponse: what is read as a response net/http reads the same way, within
// the limits, and one that was cut is never read as one that has a frame.
func FuzzResponse(f *testing.F) {
	for _, tt := range responses {
		if len(tt.text) < 1<<10 {
			f.Add([]byte(tt.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := readResponse(bytes.NewReader(data))
		if err != nil {
			if r != nil || !errors.Is(err, errMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%v, %v", r, err)
			}
			return
		}
		if len(r.body) > wire.MaxBody || r.status < 200 || r.status > 999 {
			t.Fatalf("%+v", r)
		}
		from := bufio.NewReader(bytes.NewReader(data))
		std, err := http.ReadResponse(from, nil)
		for err == nil && std.StatusCode < 200 {
			std, err = http.ReadResponse(from, nil)
		}
		if err != nil {
			return // it is stricter in places
		}
		body, err := io.ReadAll(std.Body)
		if err != nil {
			return
		}
		if std.StatusCode != r.status || !bytes.Equal(body, r.body) {
			t.Errorf("%d %q, net/http has %d %q", r.status, r.body, std.StatusCode, body)
		}
	})
}
