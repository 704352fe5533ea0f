package resident

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// What an [Update] asks for.
const (
	Attach = "attach" // one more network for a container that is attached
	Detach = "detach" // to take one from it again
)

const (
	maxRequest  = 1 << 20 // bytes of a line of requests, or of their answers
	maxRequests = 16      // of one resident, that are done at once

	// An answer is no longer than a line may be if all the updates of its
	// request have failed, even where each byte of their texts takes six.
	maxUpdates = 64   // of one request
	maxText    = 1000 // bytes of a text of a failure
)

// An Update is something that a resident asks for of its own accord. Of its
// strings those that are names are valid ones when [Host.Update] gets it.
type Update struct {
	Op          string // [Attach] or [Detach]
	ContainerID string

	// IfName is the interface to be made, of which an empty one is the
	// host's choice, or to be taken away.
	IfName string

	// Network, Args and CapabilityArgs are those of a [delegate.Attachment],
	// for Attach.
	Network        netconf.Network
	Args           string
	CapabilityArgs map[string]json.RawMessage
}

// A Failed update has not been done, for Err.
type Failed struct {
	Update
	Err *types.Error
}

// The messages of updates.
type (
	update struct {
		Op             string                     `json:"op"`
		ContainerID    string                     `json:"containerID"`
		IfName         string                     `json:"ifname,omitempty"`
		Network        json.RawMessage            `json:"network,omitempty"`
		Args           string                     `json:"args,omitempty"`
		CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	}
	request struct {
		ID      uint64   `json:"id,omitempty"`
		Updates []update `json:"updates,omitempty"`
		Leaving bool     `json:"leaving,omitempty"` // nothing more is to be asked of the resident
	}
	failure struct {
		Index int          `json:"index"` // of the update
		Error *types.Error `json:"error"`
	}
	reply struct {
		ID     uint64    `json:"id"`
		Failed []failure `json:"failed"`
	}
)

// understand checks what a resident asks for.
func (m update) understand() (Update, error) {
	u := Update{Op: m.Op, ContainerID: m.ContainerID, IfName: m.IfName, Args: m.Args, CapabilityArgs: m.CapabilityArgs}
	invalid := func(format string, args ...any) error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "resident: request "+fmt.Sprintf(format, args...), "")
	}
	if m.Op != Attach && m.Op != Detach {
		return u, invalid("%.40q: neither %q nor %q", m.Op, Attach, Detach)
	}
	if err := utils.ValidateContainerID(m.ContainerID); err != nil {
		return u, invalid("%s: %s: %.80q", m.Op, err.Msg, m.ContainerID)
	}
	if m.IfName != "" || m.Op == Detach {
		if err := utils.ValidateInterfaceName(m.IfName); err != nil {
			return u, invalid("%s: %s: %.40q", m.Op, err.Msg, m.IfName)
		}
	}
	if m.Op == Detach {
		return u, nil
	}
	n, err := netconf.Parse(m.Network)
	if err != nil {
		return u, fmt.Errorf("resident: request %s: %w", m.Op, err)
	}
	u.Network = n
	return u, nil
}

func (u Update) message() (update, error) {
	m := update{Op: u.Op, ContainerID: u.ContainerID, IfName: u.IfName, Args: u.Args, CapabilityArgs: u.CapabilityArgs}
	if u.Network.IsZero() {
		return m, nil
	}
	data, err := u.Network.MarshalJSON()
	m.Network = data
	return m, err
}

// A stream is the host's end of what a resident asks for.
type stream struct {
	lines   lines
	answers *io.PipeWriter
	close   func()
}

// openRequests opens the stream of e's requests, which ends with ctx. It is nil
// when e makes none.
func (r *Host) openRequests(ctx context.Context, e *entry) (*stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(r.registerTimeout(), func() { cancel(errLate) })
	defer late.Stop()
	body, answers := io.Pipe()
	resp, err := e.link.post(ctx, pathRequests, "", body)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	q := &stream{newLines(resp.Body), answers, func() {
		_ = answers.Close()
		_ = resp.Body.Close()
		cancel(nil)
	}}
	if resp.StatusCode != http.StatusOK {
		q.close()
		return nil, nil //nolint:nilnil // it asks for nothing
	}
	return q, nil
}

// takeRequests does what e asks for, as long as it is there. What is no
// request ends it.
func (r *Host) takeRequests(ctx context.Context, e *entry) {
	q := e.requests
	if q == nil {
		return
	}
	defer q.close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	var mu sync.Mutex // one line at a time
	slots := make(chan struct{}, maxRequests)
	for {
		line, err := q.lines.next()
		if err != nil {
			if errors.Is(err, errLine) {
				r.leave(e, err)
			}
			return // the resident has closed it, or is gone
		}
		var m request
		if err := json.Unmarshal(line, &m); err != nil || len(m.Updates) > maxUpdates {
			r.leave(e, errLine)
			return
		}
		if m.Leaving {
			e.link.retire(errLeft)
			continue
		}
		slots <- struct{}{} // Update ends with ctx, and this with the connection
		tasks.Go(func() {
			defer func() { <-slots }()
			data, err := json.Marshal(reply{ID: m.ID, Failed: r.do(ctx, e.Info, m.Updates)})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			_, _ = q.answers.Write(append(data, '\n')) // it may be gone
		})
	}
}

// do does updates, one after the other, and returns those that failed.
func (r *Host) do(ctx context.Context, from Info, us []update) []failure {
	failed := []failure{}
	for i, m := range us {
		u, err := m.understand()
		if err == nil {
			if r.Update == nil {
				err = errors.ErrUnsupported
			} else {
				err = r.Update(ctx, from, u)
			}
		}
		if err != nil {
			failed = append(failed, failure{i, cut(coded(err))})
		}
	}
	return failed
}

// coded makes a [*types.Error] of err.
func coded(err error) *types.Error {
	var e *types.Error
	if !errors.As(status.Error(err), &e) {
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
	return e
}

// cut returns e with texts of limited length.
func cut(e *types.Error) *types.Error {
	short := func(s string) string {
		if len(s) <= maxText {
			return s
		}
		return strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return types.NewError(e.Code, short(e.Msg), short(e.Details))
}

// errLeft is why a resident has gone that said that it would.
var errLeft = errors.New("it has left")

// errLine is why a resident is ended that does not speak as it should.
var errLine = errors.New("what it asks for is not the line of JSON expected")

// lines reads lines of a limited length.
type lines struct{ *bufio.Scanner }

func newLines(r io.Reader) lines {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxRequest)
	s.Split(bufio.ScanLines)
	return lines{s}
}

func (l lines) next() ([]byte, error) {
	if l.Scan() {
		return bytes.Clone(l.Bytes()), nil
	}
	switch err := l.Err(); {
	case err == nil:
		return nil, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return nil, errLine
	default:
		return nil, err
	}
}
