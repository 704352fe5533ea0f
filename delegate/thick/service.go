package thick

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/internal/turns"
)

// A command is a command of the specification.
type command string

const (
	cmdAdd    command = "ADD"
	cmdCheck  command = "CHECK"
	cmdDel    command = "DEL"
	cmdGC     command = "GC"
	cmdStatus command = "STATUS"
)

// removes reports whether c only removes attachments. Such commands are served
// while the server drains.
func (c command) removes() bool { return c == cmdDel || c == cmdGC }

// Limits that cannot be configured.
const (
	statusInFlight = 4                // STATUS commands at once
	probeTimeout   = 2 * time.Second  // of Server.Ready and Server.Probe
	writeTimeout   = 10 * time.Second // for a client to read its answer
)

// A service is a Server with its internal state.
type service struct {
	*Server

	override    override.Override
	overrideErr error

	flight           flight
	containers       turns.Turns[claim]
	add, del, status *limiter
	replays          *limiter // of the DELs of the Queue
	backlog          backlog
	reader           queue.Reader
}

func (s *Server) service() *service {
	s.once.Do(func() {
		sv := &service{Server: s, reader: queue.Reader{Queue: queue.In(s.Queue), Override: json.RawMessage("{}")}}
		if s.Override != nil {
			sv.reader.Override = s.Override
			var err error
			if sv.override, err = override.Parse(s.Override); err != nil {
				sv.overrideErr = coded(http.StatusInternalServerError, types.ErrInvalidNetworkConfig, "the Override is %v", err)
			}
		}
		places := s.maxQueued()
		sv.add = newLimiter(s.maxInFlight(), places)
		sv.del = newLimiter(s.maxInFlight(), places)
		sv.status = newLimiter(statusInFlight, places)
		sv.backlog.most = max(1, s.maxInFlight()/2)
		sv.replays = newLimiter(sv.backlog.most, 0)
		s.own = sv
	})
	return s.own
}

// limiter returns the limiter for o.
func (sv *service) limiter(o *order) *limiter {
	switch {
	case o.replayed:
		return sv.replays
	case o.command.removes():
		return sv.del
	case o.command == cmdStatus:
		return sv.status
	}
	return sv.add
}

func (s *Server) maxInFlight() int {
	if s.MaxInFlight > 0 {
		return s.MaxInFlight
	}
	return max(4, 2*runtime.GOMAXPROCS(0))
}

func (s *Server) maxQueued() int {
	if s.MaxQueued > 0 {
		return s.MaxQueued
	}
	return 256
}

func (s *Server) queueTimeout() time.Duration { return or(s.QueueTimeout, 30*time.Second) }
func (s *Server) drainTimeout() time.Duration { return or(s.DrainTimeout, 25*time.Second) }
func (s *Server) undoTimeout() time.Duration  { return or(s.UndoTimeout, 10*time.Second) }

func (t Timeouts) of(c command) time.Duration {
	switch c {
	case cmdAdd:
		return or(t.Add, 110*time.Second)
	case cmdCheck:
		return or(t.Check, 60*time.Second)
	case cmdDel:
		return or(t.Del, 110*time.Second)
	case cmdGC:
		return or(t.GC, 110*time.Second)
	default:
		return or(t.Status, 2*time.Second)
	}
}

func or(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func (s *Server) logger() *slog.Logger {
	if s.Logger != nil {
		return s.Logger
	}
	return slog.New(slog.DiscardHandler)
}

func (s *Server) log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	s.logger().LogAttrs(ctx, level, msg, attrs...)
}
