package resident

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	pathPing        = "/ping"
	pathSynchronize = "/synchronize"
	pathRequests    = "/requests"
	headerPlugin    = "CNI-Plugin"

	// maxCalls is how many calls of one resident run at once; more wait. It
	// leaves room for other streams among the 100 that any HTTP/2 server must
	// be expected to take before it has said how many it does.
	maxCalls = 96

	// maxFrame is the most that a resident reads at once, in bytes: as much
	// memory is held at the other end for a body that goes on, as that of
	// requests does.
	maxFrame = 16 << 10

	// writeTimeout bounds how long a resident may keep from reading.
	writeTimeout = 10 * time.Second
)

// A link is the host's end of a resident's connection, as a client of HTTP/2.
type link struct {
	conn      *watched
	transport *http.Transport
	calls     chan struct{} // holds one value for each call that runs
	opened    chan struct{} // closed when the transport has the connection for every call
	full      chan struct{} // closed when the connection takes no more calls
	retired   sync.Once
}

// newLink makes a client of conn. lost is called once, when the connection is.
func newLink(conn net.Conn, ping time.Duration, lost func(error)) *link {
	l := &link{
		conn: &watched{Conn: conn, lost: lost}, calls: make(chan struct{}, maxCalls),
		opened: make(chan struct{}), full: make(chan struct{}),
	}
	var dialed atomic.Bool
	l.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			switch {
			case !dialed.Swap(true):
				return l.conn, nil
			case isClosed(l.opened):
				l.retire(errFull)
			default:
				select { // it will get the connection without this
				case <-l.opened:
				case <-ctx.Done():
				}
			}
			return nil, errFull
		},
		Protocols:          new(http.Protocols),
		HTTP2:              &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping, WriteByteTimeout: writeTimeout},
		DisableCompression: true,
	}
	l.transport.Protocols.SetUnencryptedHTTP2(true)
	return l
}

// open makes the first calls. The transport shares the connection only some
// time after the first call has got it; a second call waits for that.
func (l *link) open(ctx context.Context) error {
	for range 2 {
		if _, err := l.exchange(ctx, pathPing, "", nil, maxHello); err != nil {
			return err
		}
	}
	close(l.opened)
	return nil
}

// errFull is why the transport does not get a second connection.
var errFull = errors.New("the connection takes no more calls")

// retire is for a connection that takes no more calls, because the resident has
// said that it leaves or because the transport has given it up: those that run
// may end, and then it is closed for why.
func (l *link) retire(why error) {
	l.retired.Do(func() {
		close(l.full)
		go func() {
			for range maxCalls {
				l.calls <- struct{}{} // each call ends in time
			}
			l.conn.tell(why)
			_ = l.conn.Close()
		}()
	})
}

func (l *link) close() {
	_ = l.conn.Close()
	l.transport.CloseIdleConnections()
}

// slot waits for a turn to call.
func (l *link) slot(ctx context.Context) (release func(), err error) {
	select {
	case l.calls <- struct{}{}:
		return func() { <-l.calls }, nil
	case <-l.full:
		return nil, ErrGone
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

// call has the resident do m, as the plugin of a type.
func (l *link) call(ctx context.Context, plugin string, m *wire.Request, limit int) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return l.exchange(ctx, wire.PathCNI, plugin, body, limit)
}

// exchange posts body and returns what is answered.
func (l *link) exchange(ctx context.Context, path, plugin string, body []byte, limit int) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // resets the stream, whatever is left of it
	resp, err := l.post(ctx, path, plugin, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, lost(ctx, err)
	case len(data) > limit:
		return nil, fmt.Errorf("stopped: more than %d bytes on stdout", limit)
	case resp.StatusCode == http.StatusOK:
		return data, nil
	}
	var said types.Error
	if err := json.Unmarshal(data, &said); err != nil || said.Code == types.ErrUnknown && said.Msg == "" {
		return nil, fmt.Errorf("it answered with status %d and no error object", resp.StatusCode)
	}
	return nil, &said
}

func (l *link) post(ctx context.Context, path, plugin string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://delegate"+path, body)
	if err != nil {
		return nil, err
	}
	if plugin != "" {
		req.Header.Set(headerPlugin, plugin)
	}
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return nil, lost(ctx, err)
	}
	return resp, nil
}

// lost says of err, an exchange's, that ctx has ended, or else that the
// connection was lost.
func lost(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errFull):
		return notRun(ErrGone)
	case ctx.Err() != nil:
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// A watched connection tells once that it is lost, or closed.
type watched struct {
	net.Conn
	lost func(error)
	once sync.Once
}

func (c *watched) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.tell(err)
	}
	return n, err
}

func (c *watched) Close() error {
	c.tell(net.ErrClosed)
	return c.Conn.Close()
}

func (c *watched) tell(err error) { c.once.Do(func() { c.lost(err) }) }
