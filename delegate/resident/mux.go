package resident

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/cause"
)

const (
	maxCalls    = 96 // calls of one resident that run at the same time
	maxRequests = 16 // requests of one resident that run at the same time

	maxFromHost   = 64 << 20 // bytes of a message to a resident: the list of attachments is the longest
	maxFromPlugin = 8 << 20  // bytes of a message from a resident

	// writeTimeout is how long the other side may take to read one message.
	writeTimeout = 10 * time.Second
)

// errFrame means that the other side has broken the protocol.
var errFrame = errors.New("invalid message")

// A frame is one message. On the wire its length comes first: four bytes, most
// significant first. It is a call, the answer to the call with the same ID, the
// cancellation of such a call, a ping, or the wish to leave. Each side numbers its
// own calls.
type frame struct {
	ID     uint64          `json:"id,omitempty"`
	Call   string          `json:"call,omitempty"` // not set in an answer
	Body   json.RawMessage `json:"body,omitempty"`
	Cancel bool            `json:"cancel,omitempty"`
	Stdout []byte          `json:"stdout,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// A message is an encoded frame.
type message struct {
	data    []byte
	answers *uint64 // the ID of the call that it answers
}

// A mux exchanges calls in both directions over one connection.
//
// The number of calls that run at the same time is limited in each direction.
// The reader therefore never waits for a handler, and the memory in use is
// bounded by the two limits and the size of a message.
type mux struct {
	conn   net.Conn
	in     *bufio.Reader
	handle func(ctx context.Context, call string, body []byte) (stdout []byte, err error)

	maxIn, maxOut int           // bytes of a message
	limit         int           // calls of the other side that run at the same time
	slots         chan struct{} // holds a value for each of our calls that is not answered yet

	out   chan message  // to the writer
	pings chan struct{} // a ping to be answered
	heard atomic.Bool   // something was received since the last look

	close context.CancelCauseFunc                      // closes the connection; only the first reason counts
	done  <-chan struct{}                              // closed with the connection
	why   func() error                                 // returns why the connection was closed
	child func() (context.Context, context.CancelFunc) // returns a context that ends with the connection
	full  chan struct{}                                // closed when no further call is made
	loops sync.WaitGroup
	tasks sync.WaitGroup // handlers

	mu      sync.Mutex // protects what follows
	last    uint64
	waiting map[uint64]chan frame         // our calls
	running map[uint64]context.CancelFunc // calls of the other side, until the answer is written
}

// newMux returns a mux for a connection of which in has been read so far. The
// contexts of handlers have the values of ctx.
func newMux(ctx context.Context, conn net.Conn, in *bufio.Reader) *mux {
	m := &mux{
		conn: conn, in: in, out: make(chan message), pings: make(chan struct{}, 1), full: make(chan struct{}),
		waiting: make(map[uint64]chan frame), running: make(map[uint64]context.CancelFunc),
	}
	ctx, m.close = context.WithCancelCause(context.WithoutCancel(ctx))
	m.done = ctx.Done()
	m.why = func() error { return context.Cause(ctx) }
	m.child = func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return m
}

// start begins to read and write.
func (m *mux) start() {
	m.loops.Go(func() { m.close(m.read()) })
	m.loops.Go(m.write)
}

// wait returns when the connection is closed and all handlers have returned.
func (m *mux) wait() {
	m.loops.Wait()
	m.tasks.Wait()
}

// retire makes no further calls, and closes the connection when those that run
// have been answered. Only read calls it.
func (m *mux) retire(why error) {
	if isClosed(m.full) {
		return
	}
	close(m.full)
	m.tasks.Go(func() {
		for range cap(m.slots) {
			select {
			case m.slots <- struct{}{}:
			case <-m.done:
				return
			}
		}
		m.close(why)
	})
}

// retired reports whether no further call is made.
func (m *mux) retired() bool { return isClosed(m.full) || isClosed(m.done) }

// watch closes the connection when the other side is silent for three intervals.
// Two of them follow a ping: one may have passed while this process was stopped.
func (m *mux) watch(interval time.Duration) {
	for silent := 0; pause(m.done, interval); {
		switch {
		case m.heard.Swap(false):
			silent = 0
		case silent == 2:
			m.close(fmt.Errorf("%w: pings are not answered", ErrLost))
		default:
			silent++
			m.post(frame{Call: callPing})
		}
	}
}

// call has the other side do something. When it has not been asked there is a
// [delegate.ErrNotRun] in the error.
func (m *mux) call(ctx context.Context, call string, body any) ([]byte, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, notRun(errors.New("encoding the message failed")) // err may quote a configuration
	}
	select {
	case m.slots <- struct{}{}:
	case <-m.full:
		return nil, notRun(ErrGone)
	case <-m.done:
		return nil, notRun(ErrGone)
	case <-ctx.Done():
		return nil, notRun(cause.Of(ctx))
	}
	if m.retired() {
		<-m.slots
		return nil, notRun(ErrGone)
	}
	id, answer := m.await()
	data, err := m.encode(frame{ID: id, Call: call, Body: content})
	if err == nil {
		select {
		case m.out <- message{data: data}:
		case <-m.done:
			err = ErrGone
		case <-ctx.Done():
			err = cause.Of(ctx)
		}
	}
	if err != nil {
		m.answered(frame{ID: id})
		return nil, notRun(err)
	}
	select {
	case f := <-answer:
		return f.result()
	case <-ctx.Done():
		go m.post(frame{ID: id, Cancel: true})
		return nil, cause.Of(ctx)
	case <-m.done:
	}
	select {
	case f := <-answer: // the last message
		return f.result()
	default:
	}
	err = m.why()
	if !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil, err
}

// await enters a call of ours.
func (m *mux) await() (id uint64, answer chan frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	answer = make(chan frame, 1)
	m.waiting[m.last] = answer
	return m.last, answer
}

// answered removes the call that f answers. Its slot is free from now on, and
// not earlier: a call that nobody waits for any more still runs. The answer comes
// before that: retire closes the connection when all slots are free.
func (m *mux) answered(f frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if answer := m.waiting[f.ID]; answer != nil {
		delete(m.waiting, f.ID)
		answer <- f
		<-m.slots
	}
}

func (f frame) result() ([]byte, error) {
	switch {
	case f.Error == nil:
		return f.Stdout, nil
	case f.Error.Code == types.ErrUnknown && f.Error.Msg == "":
		return nil, errors.New("it failed without an error object")
	}
	return nil, f.Error
}

// read reads until the connection ends, and returns why it did.
func (m *mux) read() error {
	for {
		f, err := m.next()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
		m.heard.Store(true)
		switch {
		case f.Cancel:
			m.mu.Lock()
			if cancel := m.running[f.ID]; cancel != nil {
				cancel()
			}
			m.mu.Unlock()
		case f.Call == callPing:
			select {
			case m.pings <- struct{}{}:
			default: // the writer answers both at once
			}
		case f.Call == callLeave:
			m.retire(errLeft)
		case f.Call == "":
			m.answered(f)
		default:
			if err := m.begin(f); err != nil {
				return fmt.Errorf("%w: %w", ErrLost, err)
			}
		}
	}
}

func (m *mux) next() (f frame, err error) {
	var length [4]byte
	if _, err := io.ReadFull(m.in, length[:]); err != nil {
		return f, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if uint64(n) > uint64(m.maxIn) { //nolint:gosec // a constant
		return f, fmt.Errorf("%w: %d bytes are more than %d", errFrame, n, m.maxIn)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(m.in, data); err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, errFrame // err may quote a configuration
	}
	return f, nil
}

// begin runs the handler for a call of the other side.
func (m *mux) begin(f frame) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[f.ID] != nil || len(m.running) >= m.limit {
		return fmt.Errorf("%w: more than %d calls, or one ID twice", errFrame, m.limit)
	}
	ctx, cancel := m.child()
	m.running[f.ID] = cancel
	m.tasks.Go(func() {
		stdout, err := m.handle(ctx, f.Call, f.Body)
		cancel()
		answer := frame{ID: f.ID, Stdout: stdout}
		if err != nil {
			answer = frame{ID: f.ID, Error: coded(err)}
		}
		m.send(answer, &f.ID)
	})
	return nil
}

// post hands a message that is no answer to the writer.
func (m *mux) post(f frame) { m.send(f, nil) }

// send hands a message to the writer. An answer that is too long becomes an error.
func (m *mux) send(f frame, answers *uint64) {
	data, err := m.encode(f)
	if err != nil {
		short := types.NewError(types.ErrInternal, err.Error(), "")
		if f.Error != nil {
			short.Code = f.Error.Code
		}
		data, _ = m.encode(frame{ID: f.ID, Error: short})
	}
	select {
	case m.out <- message{data, answers}:
	case <-m.done:
	}
}

// encode returns f as it is written.
func (m *mux) encode(f frame) ([]byte, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return nil, errors.New("encoding the message failed")
	}
	if len(data) > m.maxOut {
		return nil, fmt.Errorf("a message of %d bytes is longer than %d", len(data), m.maxOut)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...), nil //nolint:gosec // less than maxOut
}

// write writes messages until the connection ends.
func (m *mux) write() {
	pong, _ := m.encode(frame{}) // an answer to no call
	for {
		var next message
		select {
		case next = <-m.out:
		case <-m.pings:
			next.data = pong
		case <-m.done:
			return
		}
		if next.answers != nil { // not later: the other side may make another call
			m.mu.Lock()
			delete(m.running, *next.answers)
			m.mu.Unlock()
		}
		_ = m.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // when it fails, so does Write
		if _, err := m.conn.Write(next.data); err != nil {
			m.close(fmt.Errorf("%w: %w", ErrLost, err))
			return
		}
	}
}
