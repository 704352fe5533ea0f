package kubetest

import (
	"encoding/pem"
	"log/slog"
	"net"
	"net/http/httptest"
	"sync"
)

// Start makes the server listen again after Stop, at the same address and with the same
// objects. It does nothing if the server listens already. It panics if it cannot listen.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return
	}
	l, err := net.ListenTCP("tcp", &s.addr)
	s.release()
	if err != nil {
		panic("kubetest: " + err.Error())
	}
	s.down = make(chan struct{})
	s.http = httptest.NewUnstartedServer(handler{s, s.down})
	_ = s.http.Listener.Close() // in favour of ours
	s.http.Listener = listener{l, s, s.down}
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	if s.URL == "" {
		s.URL = s.http.URL
		s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		s.addr = *a
	}
}

// Stop closes the listener and all connections. New connections are refused until
// Start. Objects, requests and faults are kept.
func (s *Server) Stop() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down == nil && s.hold == nil {
		s.hold = reserve(s.addr)
	}
}

// Close stops the server for good.
func (s *Server) Close() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
}

func (s *Server) stop() {
	s.mu.Lock()
	h, down := s.http, s.down
	s.http, s.down = nil, nil
	s.mu.Unlock()
	if down != nil {
		close(down)
		h.CloseClientConnections()
		h.Close()
	}
}

// release gives up the port of a stopped server. Called with mu held.
func (s *Server) release() {
	if s.hold != nil {
		s.hold()
		s.hold = nil
	}
}

// A listener accepts connections that carry nothing while the server is a black hole.
type listener struct {
	net.Listener
	s    *Server
	down chan struct{}
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, l: l, closed: make(chan struct{})}, nil
}

type conn struct {
	net.Conn
	l      listener
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if held := c.hold(); held != nil {
		return 0, held
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if err := c.hold(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// hold waits until the server is no black hole. It fails if the connection is closed or the
// server stops before.
func (c *conn) hold() error {
	for {
		healed := c.l.s.blackHole()
		if healed == nil {
			return nil
		}
		select {
		case <-healed:
		case <-c.closed:
			return net.ErrClosed
		case <-c.l.down:
			return net.ErrClosed
		}
	}
}

// blackHole returns a channel that is closed when the black hole is healed, nil if there
// is none.
func (s *Server) blackHole() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.total() {
			return f.healed
		}
	}
	return nil
}
