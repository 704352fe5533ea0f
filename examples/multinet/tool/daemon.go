package tool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf/nad"
)

// daemonTimeout limits how long a daemon may take for its answer. It may have to ask the
// API.
const daemonTimeout = 30 * time.Second

// askDaemon returns the annotation network-status that the API has of pod. It asks the daemon
// whose socket is in dir.
func askDaemon(dir string, pod nad.Pod) (string, error) {
	query := url.Values{"namespace": {pod.Namespace}, "name": {pod.Name}, "uid": {pod.UID}}
	status, body, err := get(filepath.Join(dir, wire.SocketName), multinet.NetworkStatusPath+"?"+query.Encode())
	if err != nil {
		return "", err
	}
	why := refusal(body)
	switch {
	case status == 200:
		return string(body), nil
	case status == 501, status == 404 && (strings.HasPrefix(why, "404 page") || strings.HasPrefix(why, "unknown path")):
		return "", errors.New("the daemon does not work with Kubernetes")
	case status == 404:
		return "", fmt.Errorf("it is gone: %s", why)
	case status == 503:
		return "", fmt.Errorf("the API cannot be asked at the moment: %s", why)
	}
	return "", fmt.Errorf("the daemon answers with status %d: %s", status, why)
}

// refusal returns body, an error object of CNI or plain text, in one line.
func refusal(body []byte) string {
	text := string(body)
	var e types.Error
	if json.Unmarshal(body, &e) == nil && e.Msg != "" {
		text = e.Error()
	}
	return strings.Join(strings.Fields(fmt.Sprintf("%.400s", text)), " ")
}

// get asks the server on a socket for a page. It speaks HTTP/1.0, in which a response ends with
// its connection: a client of package net/http would double the size of the program.
func get(socket, path string) (status int, body []byte, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		var call *os.SyscallError // without the path
		if errors.As(err, &call) {
			err = call
		}
		return 0, nil, fmt.Errorf("no daemon answers on %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }() // nothing can be lost any more
	_ = conn.SetDeadline(time.Now().Add(daemonTimeout))
	_, unsent := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	text, err := io.ReadAll(io.LimitReader(conn, wire.MaxBody))
	if err = errors.Join(unsent, err); err != nil {
		return 0, nil, fmt.Errorf("no answer of the daemon on %s: %w", socket, err)
	}
	_, body, whole := bytes.Cut(text, []byte("\r\n\r\n"))
	r := textproto.NewReader(bufio.NewReader(bytes.NewReader(text)))
	line, _ := r.ReadLine()
	header, err := r.ReadMIMEHeader()
	if n, _ := fmt.Sscanf(line, "HTTP/1.%d %d", new(int), &status); n < 2 || err != nil || !whole {
		return 0, nil, fmt.Errorf("malformed HTTP response from the daemon on %s", socket)
	}
	if length := header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(body)) {
		return 0, nil, fmt.Errorf("incomplete HTTP response from the daemon on %s", socket)
	}
	return status, body, nil
}
