package resident_test

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A peer is a connection to a host on which the test speaks the protocol itself.
type peer struct {
	net.Conn
	in *bufio.Reader
	t  testing.TB
}

func (n *node) dial() *peer {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket)
	ok(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	ok(n.t, c.SetDeadline(time.Now().Add(patience)))
	return &peer{c, bufio.NewReader(c), n.t}
}

func (p *peer) say(text string) *peer {
	_, _ = io.WriteString(p.Conn, text) // it may have been refused already
	return p
}

// hear returns the host's answer to the hello.
func (p *peer) hear() (answer struct {
	Version  int
	Error    string
	Requests bool
},
) {
	p.t.Helper()
	line, err := p.in.ReadBytes('\n')
	ok(p.t, err)
	ok(p.t, json.Unmarshal(line, &answer))
	return answer
}

// closed waits until the host has closed the connection.
func (p *peer) closed() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.in); err != nil && cmp.Or(os.IsTimeout(err), false) {
		p.t.Errorf("the connection is open: %v", err)
	}
}

func hello(index, name string, types ...string) string {
	data, err := json.Marshal(map[string]any{"version": 2, "index": index, "name": name, "types": types})
	if err != nil {
		panic(err)
	}
	return string(data) + "\n"
}

// send sends a message.
func (p *peer) send(message string) *peer {
	return p.say(string(binary.BigEndian.AppendUint32(nil, uint32(len(message)))) + message)
}

// receive returns the next message of the host that is not a ping.
func (p *peer) receive() (m struct {
	ID   uint64
	Call string
},
) {
	p.t.Helper()
	var length [4]byte
	_, err := io.ReadFull(p.in, length[:])
	ok(p.t, err)
	data := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err = io.ReadFull(p.in, data)
	ok(p.t, err)
	ok(p.t, json.Unmarshal(data, &m))
	if m.Call == "ping" {
		return p.receive()
	}
	return m
}

// register registers a resident and answers the list of attachments.
func (p *peer) register(index, name string) *peer {
	p.t.Helper()
	p.say(hello(index, name, name))
	if w := p.hear(); w.Error != "" {
		p.t.Fatal(w.Error)
	}
	m := p.receive()
	if m.Call != "synchronize" {
		p.t.Fatalf("received %+v", m)
	}
	return p.send(fmt.Sprintf(`{"id":%d}`, m.ID))
}
