package delegate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/fault"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// A code is found however it is wrapped, joined or left behind, together with
// who said it.
func TestCodesSurviveWrappingAndJoining(t *testing.T) {
	t.Parallel()
	said := types.NewError(107, "no free device", "all 8 in use")
	e := &delegate.Error{Event: delegate.Event{Command: "ADD", Plugin: "sriov", Network: "blue", ContainerID: "c1", IfName: "net1"}, Err: said}
	for name, err := range map[string]error{
		"plain":           e,
		"wrapped":         fmt.Errorf("attaching: %w", e),
		"said wrapped":    &delegate.Error{Err: fmt.Errorf("exec: %w", said)},
		"joined":          errors.Join(errors.New("clean up: no such link"), e),
		"joined inside":   &delegate.Error{Err: errors.Join(errors.New("x"), types.NewError(0, "y", ""), said)},
		"undo failed":     fault.NotUndone(e, &delegate.Error{Err: types.NewError(5, "stuck", "")}),
		"undo in an undo": fault.NotUndone(fault.NotUndone(e, errors.New("a")), errors.New("b")),
	} {
		nodetest.Equal(t, name+": code", status.Code(err), 107)
		nodetest.Is(t, err, said)
	}
	nodetest.Equal(t, "text", e.Error(), `ADD network "blue" (net1): plugin "sriov": no free device; all 8 in use`)
	lines := types.NewError(107, "no free device\n  8 in use\n", "dmesg says:\r\nhot")
	e.Err = fault.NotUndone(errors.Join(lines, errors.New("x")), errors.New("y\nz"))
	nodetest.Equal(t, "text", e.Error(), `ADD network "blue" (net1): plugin "sriov": no free device; 8 in use; dmesg says:; hot; x; undoing it failed as well: y; z`)
	nodetest.Equal(t, "text", e.Err.Error(), `no free device; 8 in use; dmesg says:; hot; x; undoing it failed as well: y; z`)
	nodetest.Equal(t, "text", (&delegate.Error{Event: delegate.Event{Command: "GC", Network: "blue"}, Err: said}).Error(), `GC network "blue": no free device; all 8 in use`)
}

func TestErrorCNICode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want uint
	}{
		{"nothing has one", errors.New("exit status 1"), 0},
		{"zero", types.NewError(0, "x", ""), 0},
		{"plugin not found", fmt.Errorf("%w: x", delegate.ErrPluginNotFound), 7},
		{"result", fmt.Errorf("%w: x", delegate.ErrResult), 6},
		{"cancelled", fmt.Errorf("signal: killed: %w", context.Canceled), 11},
		{"deadline", errors.Join(types.NewError(5, "x", ""), context.DeadlineExceeded), 11},
		{"another package's", &delegate.Error{Err: delegate.ErrResult}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodetest.Equal(t, "code", (&delegate.Error{Err: tt.err}).CNICode(), tt.want)
		})
	}
}

const (
	secret     = "hunter2!"
	bracketed  = "opensesame{tail}" // a part of it is a secret as well
	pin        = "90071992547409931"
	credential = secret + "-argument"
	pem        = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAoIBAQ\n-----END KEY-----\n"
)

// vault is a network whose configuration holds secrets, at several depths.
func vault(tb testing.TB) delegate.Attachment {
	tb.Helper()
	key, err := json.Marshal(pem)
	nodetest.OK(tb, err)
	a := attach(nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"p","capabilities":{"token":true},
		"password":"` + secret + `","path":"/run/one-path","auth":{"keys":[` + string(key) + `,"` + bracketed + `"],"pin":` + pin + `}}]}`))
	a.CapabilityArgs = map[string]json.RawMessage{"token": json.RawMessage(`"` + credential + `"`)}
	return a
}

func leaks(text string) bool {
	return strings.Contains(text, "sesame") || strings.Contains(text, "9007") || strings.Contains(text, "hunter2") || strings.Contains(text, "MIIE") || strings.Contains(text, "BAQEF") || strings.Contains(text, "argument")
}

// tree returns the texts of err and of all that it wraps.
func tree(err error) []string {
	if err == nil {
		return nil
	}
	texts := []string{err.Error(), fmt.Sprintf("%+v", err)}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		texts = append(texts, tree(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			texts = append(texts, tree(inner)...)
		}
	}
	return texts
}

// textOf is what events say, without addresses: their digits may be those of a
// secret.
func textOf(events []delegate.Error) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "%+v %v\n", e.Event, e.Err)
	}
	return text.String()
}

// timeless leaves times out of a log: their digits may be those of a secret.
func timeless(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}

// Whatever a plugin does with its configuration, no error, event or log line
// repeats it.
func TestSecretsStayOutOfErrorsEventsAndLogs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		add  func(stdin []byte) ([]byte, error)
		code uint
	}{
		{"result is the configuration", func(in []byte) ([]byte, error) { return in, nil }, 6},
		{"noise is the configuration", func(in []byte) ([]byte, error) { return append([]byte("got: "), in...), nil }, 6},
		{"noise is a secret", func([]byte) ([]byte, error) { return []byte("password=" + secret + "\n{}"), nil }, 6},
		{"noise is a long secret", func([]byte) ([]byte, error) { return []byte(pem), nil }, 6}, // of which a part is quoted
		{"a bracket is in the secret", func([]byte) ([]byte, error) { return []byte(bracketed + "\n{}"), nil }, 6},
		{"a number is the secret", func([]byte) ([]byte, error) { return nil, errors.New("pin " + pin + " refused") }, 999},
		{"configuration after the result", func(in []byte) ([]byte, error) { return append([]byte(`{"cniVersion":"1.1.0"} `), in...), nil }, 6},
		{"undecodable result quotes a secret", func([]byte) ([]byte, error) {
			return []byte(`{"cniVersion":"1.1.0","ips":[{"address":"` + secret + `"}]}`), nil
		}, 6},
		{"version is a secret", func([]byte) ([]byte, error) { return []byte(`{"cniVersion":"` + secret + `"}`), nil }, 6},
		{"coded error repeats the configuration", func(in []byte) ([]byte, error) {
			return nil, types.NewError(107, "bad configuration: "+string(in), strconv.Quote(string(in)))
		}, 107},
		{"error without a code holds a secret", func(in []byte) ([]byte, error) {
			return nil, types.NewError(0, fmt.Sprintf("netplugin failed: %q", in), secret)
		}, 999},
		{"text holds a secret", func([]byte) ([]byte, error) { return nil, errors.New("exit status 1: " + secret) }, 999},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes()
			x.Plugins["p"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
				if c.Command == "ADD" {
					return tt.add(c.Stdin)
				}
				return nil, errors.New("DEL with " + secret)
			}
			var log bytes.Buffer
			var events []delegate.Error
			iv := invoker(x)
			iv.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: timeless}))
			iv.Observer = observe(func(e delegate.Error) { events = append(events, e) })
			_, err := iv.Add(t.Context(), vault(t))
			nodetest.Code(t, err, tt.code)
			if len(events) != 2 || strings.Count(log.String(), "\n") != 2 {
				t.Fatalf("events %+v, log %s", events, &log)
			}
			for _, text := range append(tree(err), log.String(), textOf(events), fmt.Sprint(status.Error(err))) {
				if leaks(text) {
					t.Errorf("a secret is in %q", text)
				}
			}
			for i, command := range []delegate.Command{delegate.CommandAdd, delegate.CommandDel} {
				if e := events[i]; e.Command != command || e.Plugin != "p" || e.Network != "blue" || e.ContainerID != "c1" || e.IfName != "eth0" || e.Err == nil {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// What a plugin says of its own accord is kept, except for credentials. Of an error without a code,
// what it may have of the configuration is hidden, and it is still the same to errors.Is.
func TestWordsSurvive(t *testing.T) {
	t.Parallel()
	closed := errors.New("use of closed network connection")
	for want, err := range map[string]error{
		"no /run/one-path":                    types.NewError(107, "no /run/one-path", ""),
		"not run: no /run/one-path":           fmt.Errorf("%w: no /run/one-path", delegate.ErrNotRun),
		"no (hidden)":                         fmt.Errorf("exit 1: %w", types.NewError(0, "no /run/one-path", "")),
		"lost (hidden)":                       fmt.Errorf("exit 1: %w", types.NewError(types.ErrUnknown, "lost /run/one-path", "")),
		"no free address":                     types.NewError(0, "no free address", ""),
		"use of closed network connection":    fmt.Errorf("%s: %w", secret, closed),
		"no free address in 10.0.0.0/24; ask": types.NewError(107, "no free address in 10.0.0.0/24", "ask"),
	} {
		x := fakes()
		x.Plugins["p"] = failing("ADD", err)
		_, got := invoker(x).Add(t.Context(), vault(t))
		nodetest.Is(t, got, err)
		if !strings.HasSuffix(got.Error(), want) || leaks(got.Error()) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// Success is observed as well, and nothing of a configuration either.
func TestObserverAndLogger(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var events []delegate.Error
	x := fakes("p")
	iv := invoker(x)
	iv.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: timeless}))
	iv.Observer = observe(func(e delegate.Error) { events = append(events, e) })
	a := vault(t)
	done, err := iv.Add(t.Context(), a)
	nodetest.OK(t, err)
	nodetest.OK(t, errors.Join(iv.Check(t.Context(), done), iv.Del(t.Context(), done), iv.Status(t.Context(), a.Network), iv.GC(t.Context(), a.Network, nil)))
	var commands []string
	for _, e := range events {
		if e.Err != nil || e.Network != "blue" || e.Plugin != "p" || (e.ContainerID == "") != (e.Command == "STATUS" || e.Command == "GC") {
			t.Errorf("event %+v", e)
		}
		commands = append(commands, string(e.Command))
	}
	nodetest.Equal(t, "events", strings.Join(commands, " "), "ADD CHECK DEL STATUS GC")
	if leaks(log.String()) || leaks(textOf(events)) {
		t.Errorf("a secret is in the log or the events:\n%s", &log)
	}
	nodetest.Equal(t, "debug records", strings.Count(log.String(), "level=DEBUG"), 5)
}

// The runtime, and so the operator, reads one line that names the command, the
// network, the interface and the plugin once, and no package.
func TestErrorNamesEachThingOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	blue := attach(network(t, "1.1.0", "blue", "bridge", "tuning"))
	add := func(change func(*delegate.Invoker), a delegate.Attachment) func(*delegate.Invoker) error {
		return func(iv *delegate.Invoker) error { change(iv); _, err := iv.Add(ctx, a); return err }
	}
	same := func(*delegate.Invoker) {}
	broken := attach(nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","type":"bridge","capabilities":{"mac":true}}`))
	broken.CapabilityArgs = map[string]json.RawMessage{"mac": json.RawMessage("{")}
	dead, end := context.WithCancelCause(ctx)
	end(errors.New("the node is going down"))
	for name, tt := range map[string]struct {
		fail string // the command that the tuning plugin fails
		do   func(*delegate.Invoker) error
		want string
	}{
		"a plugin": {"ADD", add(same, blue), `ADD network "blue" (eth0): plugin "tuning": no; not today`},
		"an undo that fails": {
			"DEL", func(iv *delegate.Invoker) error {
				return iv.Undo(ctx, []delegate.Attached{{Attachment: blue}}, errors.New("no\n disk "))
			},
			`no; disk; undoing it failed as well: DEL network "blue" (eth0): plugin "tuning": no; not today`,
		},
		"a plugin that is not installed": {
			"", add(func(iv *delegate.Invoker) {
				iv.Exec, iv.Path = nil, []string{"/absent/bin", "/absent/bin", "", "/absent/more"}
			}, blue),
			`ADD network "blue" (eth0): plugin "bridge": not found in /absent/bin::/absent/more; relative directories are skipped`,
		},
		"no path": {
			"", func(*delegate.Invoker) error { return new(delegate.Invoker).Status(ctx, blue.Network) },
			`STATUS network "blue": plugin "bridge": not found in an empty path`,
		},
		"a plugin that is refused": {
			"", add(func(iv *delegate.Invoker) { iv.Refuse = refusing("tuning") }, blue),
			`ADD network "blue" (eth0): plugin "tuning": not this one`,
		},
		"a context that has ended": {
			"", func(iv *delegate.Invoker) error { return iv.Status(dead, blue.Network) },
			`STATUS network "blue": plugin "bridge": context canceled: the node is going down`,
		},
		"a configuration that cannot be used": {
			"", add(same, broken),
			`ADD network "blue" (eth0): ` + (&netconf.Error{Kind: netconf.ErrDecode, Key: "plugins[0].runtimeConfig.mac", Err: errors.New("line 1, column 1: unexpected end of JSON input")}).Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := fakes("bridge", "tuning")
			x.Plugins["tuning"] = failing(tt.fail, types.NewError(107, "no", "not today"))
			nodetest.Equal(t, "the runtime reads", fmt.Sprint(status.Error(tt.do(invoker(x)))), tt.want)
		})
	}
}
