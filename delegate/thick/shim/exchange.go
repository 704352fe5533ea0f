package shim

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/cause"
)

// dial connects to the daemon. The error is errAway if no daemon listens, and
// errBusy if the daemon does not accept at the moment.
func dial(socket string) (*net.UnixConn, error) {
	// Connecting to a unix socket never waits, so it needs no context, and
	// without a net.Dialer the resolver stays out of the program.
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		return conn, nil
	}
	why := err
	var call *os.SyscallError
	if errors.As(err, &call) {
		why = call // without the path, which is in the Error
	}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errAway, why)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return nil, fmt.Errorf("%w: %w", errBusy, why)
	}
	return nil, fmt.Errorf("%w: %w", errSocket, why)
}

// isAway reports whether no daemon listens.
func isAway(socket string) bool {
	conn, err := dial(socket)
	if err == nil {
		_ = conn.Close() // nothing was written
	}
	return errors.Is(err, errAway)
}

// exchange sends the command to the daemon and returns the response. When ctx ends, exchange
// tells the daemon by closing the writing half of the connection, and waits for the answer
// for up to UndoTimeout.
//
// Once the daemon is connected, the error is errLost, errMalformed, errTooLarge, or why ctx
// ended.
func (k *call) exchange(ctx context.Context) (r *response, err error) {
	conn, err := dial(k.client.Socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing can be lost any more
	text, err := message(ctx, k.path, k.request)
	if err != nil {
		return nil, err
	}
	undo := k.client.undoTimeout()
	if k.command == "STATUS" {
		undo = 0
	}
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		_ = conn.SetReadDeadline(now.Add(undo))
		_ = conn.SetWriteDeadline(now) // CloseWrite does not wake every Write
		_ = conn.CloseWrite()
	})
	_, unsent := conn.Write(text)
	if unsent == nil || ctx.Err() == nil {
		// The daemon may have answered although it did not read all.
		r, err = readResponse(conn)
	}
	late := !stop()
	switch {
	case r != nil && late && r.status == 200 && k.command == "ADD":
		// The daemon has been told to cancel the ADD and may undo it.
		return nil, fmt.Errorf("%w: the result came too late", cause.Of(ctx))
	case r != nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, cause.Of(ctx)
	case errors.Is(err, errMalformed):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", errLost, cmp.Or(unsent, err))
}

// ofContainer reports whether command is one of a single container.
func ofContainer(command string) bool {
	return command == "ADD" || command == "CHECK" || command == "DEL"
}

// environment returns the variables that are sent to the daemon: those of the
// runtime, with the values of a, and the trace.
func (c *Client) environment(command string, a *skel.CmdArgs) map[string]string {
	env := map[string]string{}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := env[name]; twice {
			continue // the first counts, as in os.Getenv
		}
		if strings.HasPrefix(name, "CNI_") || slices.Contains(wire.TraceEnv[:], name) {
			env[name] = value
		}
	}
	// The daemon of Multus needs these keys even without a value, but takes a
	// missing CNI_IFNAME for eth0.
	container := ofContainer(command)
	set := func(name, value string, keep bool) {
		delete(env, name)
		if value != "" || keep {
			env[name] = value
		}
	}
	set("CNI_COMMAND", command, true)
	set("CNI_CONTAINERID", a.ContainerID, container)
	set("CNI_NETNS", a.Netns, container)
	set("CNI_IFNAME", a.IfName, false)
	set("CNI_ARGS", a.Args, container)
	set("CNI_PATH", a.Path, false)
	if a.NetnsOverride != "" {
		env["CNI_NETNS_OVERRIDE"] = a.NetnsOverride
	}
	return env
}

// message returns r as an HTTP/1.0 request. The response then comes without chunks, and its
// body ends with its length or with the connection.
func message(ctx context.Context, path string, r wire.Request) ([]byte, error) {
	if deadline, ok := ctx.Deadline(); ok {
		r.DeadlineMs = max(time.Until(deadline).Milliseconds(), 1)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > wire.MaxBody {
		return nil, errTooLarge
	}
	b := fmt.Appendf(nil, "POST %s HTTP/1.0\r\nHost: dummy\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	return append(b, body...), nil
}

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
