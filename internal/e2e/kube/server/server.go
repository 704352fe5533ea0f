// Package server runs a real Kubernetes API server for tests: etcd and kube-apiserver on
// the loopback interface. There is no kubelet, scheduler or controller.
package server

import (
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
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/internal/test/process"
)

// A Server is a kube-apiserver with an etcd. It authorizes by RBAC, issues tokens for
// service accounts and has all admission plugins of a cluster, except ServiceAccount:
// no controller creates the default service account of a namespace. Nothing reports
// nodes or runs pods: create a pod with spec.nodeName.
type Server struct {
	URL string
	CA  string // file of the certificate that the server shows

	programs string // directory of the programs

	dir  string // everything that the two processes keep
	port int    // stays reserved while the server is stopped
	hold int    // the socket that reserves port
	etcd *process.Process
	api  *process.Process
}

// AdminToken is the token of an administrator.
const AdminToken = "admin"

// Programs returns the directory of etcd (server), kube-apiserver and kubectl.
func Programs(ctx context.Context) (string, error) {
	root, err := process.Root()
	if err != nil {
		return "", err
	}
	return process.Tools{
		Dir: filepath.Join(root, "internal/e2e/kube/testdata/programs"), Name: "kube", Module: "k8s.io/kubernetes",
		Builds: []process.Build{{
			Env:  []string{"CGO_ENABLED=0"},
			Args: []string{"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=VERSION", "tool"},
		}},
	}.Build(ctx)
}

// Open starts a server with the programs in a directory. It takes about three seconds. The
// caller closes the server.
func Open(programs string) (s *Server, err error) {
	s = &Server{programs: programs, hold: -1}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "metacni-kube-"); err != nil {
		return s, err
	}
	s.CA = s.Path("certs", "apiserver.crt")
	if s.hold, s.port, err = reserve(); err != nil {
		return s, fmt.Errorf("reserve a port: %w", err)
	}
	s.URL = "https://127.0.0.1:" + strconv.Itoa(s.port)
	if err = os.WriteFile(s.Path("tokens.csv"), []byte(AdminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return s, err
	}
	if err = writeKey(s.Path("accounts.key")); err != nil {
		return s, err
	}
	s.etcd, err = s.start("etcd.log", "server", "--data-dir", s.Path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", s.etcdURL(), "--advertise-client-urls", "http://unused:1",
		"--listen-peer-urls", "unix://"+s.Path("peer.sock"), "--log-level", "warn")
	if err != nil {
		return s, err
	}
	return s, s.serve()
}

// start starts one of the programs.
func (s *Server) start(log, name string, args ...string) (*process.Process, error) {
	return process.Start(s.Path(log), exec.CommandContext(context.Background(), s.program(name), args...))
}

// serve starts kube-apiserver and waits until it is ready.
func (s *Server) serve() (err error) {
	s.api, err = s.start("apiserver.log", "kube-apiserver",
		"--etcd-servers", s.etcdURL(),
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none",
		"--secure-port", strconv.Itoa(s.port), "--permit-port-sharing",
		"--cert-dir", s.Path("certs"), "--token-auth-file", s.Path("tokens.csv"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-key-file", s.Path("accounts.key"), "--service-account-signing-key-file", s.Path("accounts.key"),
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
		case <-s.etcd.Done:
			err = errors.New("etcd has ended")
		case <-s.api.Done:
			err = errors.New("kube-apiserver has ended")
		case <-ctx.Done():
			err = errors.New("kube-apiserver is not ready after five minutes")
		}
		return fmt.Errorf("%w\n%s%s", err, s.etcd.LastLines(), s.api.LastLines())
	}
}

func (s *Server) ready(ctx context.Context) bool {
	client, err := rest.HTTPClientFor(s.Admin())
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
func (s *Server) Stop() { s.api.Kill() }

// Start starts kube-apiserver after Stop, at the same address and with the same
// certificate and objects.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.serve(); err != nil {
		t.Fatal(err)
	}
}

// Close ends the server and removes everything that it keeps.
func (s *Server) Close() {
	s.api.Kill()
	s.etcd.Kill()
	if s.hold >= 0 {
		_ = unix.Close(s.hold)
	}
	_ = os.RemoveAll(s.dir)
}

// Path returns the path of a file that ends with the server.
func (s *Server) Path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Server) etcdURL() string { return "unix://" + s.Path("etcd.sock") }

func (s *Server) program(name string) string { return filepath.Join(s.programs, name) }

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
			if addr, ok := addr.(*unix.SockaddrInet4); ok {
				return fd, addr.Port, nil
			}
			err = unix.EAFNOSUPPORT
		}
	}
	_ = unix.Close(fd)
	return -1, 0, err
}

// writeKey writes a new private key to a file.
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
