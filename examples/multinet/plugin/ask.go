package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// AskDaemon asks the daemon on a socket for a page, and waits for a time at most. It speaks
// HTTP/1.0, in which a response ends with its connection: a client of package net/http would
// double the size of the program.
func AskDaemon(socket, path string, wait time.Duration) (status int, body []byte, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, nil, fmt.Errorf("no daemon answers on %s: %w", socket, errors.Unwrap(err)) // without the path
	}
	defer func() { _ = conn.Close() }() // nothing can be lost any more
	_ = conn.SetDeadline(time.Now().Add(wait))
	_, unsent := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	answer, err := io.ReadAll(io.LimitReader(conn, wire.MaxBody))
	head, body, whole := bytes.Cut(answer, []byte("\r\n\r\n"))
	_, after, framed := strings.Cut(string(head), "\r\nContent-Length: ")
	length, _, _ := strings.Cut(after, "\r\n")
	switch n, _ := fmt.Sscanf(string(head), "HTTP/1.%d %d", new(int), &status); {
	case unsent != nil || err != nil:
		return 0, nil, fmt.Errorf("no answer of the daemon on %s: %w", socket, errors.Join(unsent, err))
	case n < 2 || !whole:
		return 0, nil, fmt.Errorf("malformed HTTP response from the daemon on %s", socket)
	case framed && length != strconv.Itoa(len(body)):
		return 0, nil, fmt.Errorf("incomplete HTTP response from the daemon on %s", socket)
	}
	return status, body, nil
}
