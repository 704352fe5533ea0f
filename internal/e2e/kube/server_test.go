package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Server is a kube-apiserver with an etcd. It authorizes by RBAC, issues tokens for
// service accounts and has all admission plugins of a cluster, except ServiceAccount:
// no controller creates the default service account of a namespace. Nothing reports
// nodes or runs pods: create a pod with spec.nodeName.
type Server struct {
	URL string
	CA  string // file of the certificate that the server shows

	dir  string // everything that the two processes keep
	port int    // stays reserved while the server is stopped
	hold int    // the socket that reserves port
	etcd *process
	api  *process
}

const adminToken = "admin"

// NewServer starts a server that ends with the test. It takes about three seconds;
// most tests share one with [cluster].
func NewServer(t testing.TB) *Server {
	t.Helper()
	needPrograms(t)
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// needPrograms skips the test if there are no programs, or fails it if they are
// required.
func needPrograms(t testing.TB) {
	t.Helper()
	if noPrograms != "" {
		if os.Getenv(requireEnv) == "require" {
			t.Fatal(noPrograms)
		}
		t.Skip(noPrograms)
	}
}

// open starts a server. The caller closes it.
func open() (s *Server, err error) {
	s = &Server{hold: -1}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "metacni-kube-"); err != nil {
		return s, err
	}
	s.CA = s.path("certs", "apiserver.crt")
	if s.hold, s.port, err = reserve(); err != nil {
		return s, fmt.Errorf("reserve a port: %w", err)
	}
	s.URL = "https://127.0.0.1:" + strconv.Itoa(s.port)
	if err = os.WriteFile(s.path("tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return s, err
	}
	if err = writeKey(s.path("accounts.key")); err != nil {
		return s, err
	}
	s.etcd, err = start(s.path("etcd.log"), program("server"), "--data-dir", s.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", s.etcdURL(), "--advertise-client-urls", "http://unused:1",
		"--listen-peer-urls", "unix://"+s.path("peer.sock"), "--log-level", "warn")
	if err != nil {
		return s, err
	}
	return s, s.serve()
}

// serve starts kube-apiserver and waits until it is ready.
func (s *Server) serve() (err error) {
	s.api, err = start(s.path("apiserver.log"), program("kube-apiserver"),
		"--etcd-servers", s.etcdURL(),
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none",
		"--secure-port", strconv.Itoa(s.port), "--permit-port-sharing",
		"--cert-dir", s.path("certs"), "--token-auth-file", s.path("tokens.csv"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-key-file", s.path("accounts.key"), "--service-account-signing-key-file", s.path("accounts.key"),
		"--authorization-mode", "Node,RBAC", "--allow-privileged", "--enable-admission-plugins", "NodeRestriction",
		"--disable-admission-plugins", "ServiceAccount")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for pause := time.NewTicker(50 * time.Millisecond); ; {
		if s.ready(ctx) {
			return nil
		}
		select {
		case <-pause.C:
			continue
		case <-s.etcd.done:
			err = errors.New("etcd has ended")
		case <-s.api.done:
			err = errors.New("kube-apiserver has ended")
		case <-ctx.Done():
			err = errors.New("kube-apiserver is not ready after five minutes")
		}
		return fmt.Errorf("%w\n%s%s", err, s.etcd.lastLines(), s.api.lastLines())
	}
}

func (s *Server) ready(ctx context.Context) bool {
	client, err := s.httpClient()
	if err != nil {
		return false // no certificate yet
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// Stop kills kube-apiserver: connections are reset, and new ones are refused.
func (s *Server) Stop() { s.api.kill() }

// Start starts kube-apiserver after Stop, at the same address and with the same
// certificate and objects.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.serve(); err != nil {
		t.Fatal(err)
	}
}

// Pause stops kube-apiserver from answering: the kernel accepts connections, and nobody
// serves them.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.api.signal(t, syscall.SIGSTOP)
	for { // until its last thread has stopped
		err := unix.Waitid(unix.P_PID, s.api.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		switch {
		case err == nil:
			return
		case !errors.Is(err, unix.EINTR):
			t.Fatal(err)
		}
	}
}

// Resume ends a pause. Clients get the answers to what they have asked meanwhile.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.api.signal(t, syscall.SIGCONT)
}

func (s *Server) close() {
	s.api.kill()
	s.etcd.kill()
	if s.hold >= 0 {
		_ = unix.Close(s.hold)
	}
	_ = os.RemoveAll(s.dir)
}

func (s *Server) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Server) etcdURL() string { return "unix://" + s.path("etcd.sock") }

func program(name string) string { return filepath.Join(os.Getenv(programsEnv), name) }

// reserve binds a socket to a free port of 127.0.0.1 without listening. Only sockets
// with SO_REUSEPORT of the same user can share the port, and connections to it are
// refused until one of them listens.
func reserve() (fd, port int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte(net.IPv4(127, 0, 0, 1).To4())})
	}
	if err == nil {
		var addr unix.Sockaddr
		if addr, err = unix.Getsockname(fd); err == nil {
			return fd, addr.(*unix.SockaddrInet4).Port, nil
		}
	}
	_ = unix.Close(fd)
	return -1, 0, err
}

// writeKey creates the key that signs the tokens of service accounts.
func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// A process is killed when this process ends, however it ends.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// start runs a program, whose output goes to the end of the file log.
func start(log, program string, args ...string) (*process, error) {
	return startCommand(log, exec.Command(program, args...))
}

// startCommand is start for a command that has more than arguments.
func startCommand(log string, cmd *exec.Cmd) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes at the end of this thread
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	return p, <-started
}

// kill ends the process and waits for its end. A nil process has ended.
func (p *process) kill() {
	if p != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *process) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// lastLines returns the end of what the process has printed.
func (p *process) lastLines() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	return fmt.Sprintf("%s:\n%s", filepath.Base(p.log), bytes.Join(lines[max(0, len(lines)-20):], nil))
}
