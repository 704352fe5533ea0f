//go:build linux

// Package programtest runs an example plugin as a process in its tests, with a fake
// plugin to delegate to. Neither is built: the test binary acts as the program whose name
// it is called with.
package programtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// program is the name of the example plugin. Without one, a test binary that is called as
// the plugin would run its tests again, which would run the binary, and so on.
var program string //nolint:gochecknoglobals // set once, by TestMain

// Main is the TestMain of the example plugin with that name and main function.
func Main(m *testing.M, name string, main func()) {
	program = name
	switch filepath.Base(os.Args[0]) {
	case name:
		main()
		os.Exit(0)
	case holder:
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		os.Exit(0)
	case "fake":
		if err := fake(); err != nil {
			_ = json.NewEncoder(os.Stdout).Encode(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake is the delegated plugin. It writes its calls to the file "log" in the directory
// "dir" of its configuration. For each command it does what "on" says: "fail" with code
// 107, "hang" after it has written to the FIFO "ready", or "privileges": it then adds to the
// log whether the process has no_new_privs.
func fake() *types.Error {
	var conf struct {
		CNIVersion string            `json:"cniVersion"`
		Dir        string            `json:"dir"`
		On         map[string]string `json:"on"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "fake", err.Error())
	}
	command := os.Getenv("CNI_COMMAND")
	log, err := os.OpenFile(filepath.Join(conf.Dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return types.NewError(types.ErrIOFailure, "fake", err.Error())
	}
	call := command + " " + os.Getenv("CNI_IFNAME")
	if conf.On[command] == "privileges" && nodetest.Status(os.Getpid(), "NoNewPrivs") == 1 {
		call += " noNew"
	}
	fmt.Fprintln(log, strings.TrimSpace(call))
	switch conf.On[command] {
	case "fail":
		return types.NewError(107, "no free device", "")
	case "hang":
		never := make(chan os.Signal, 1)
		signal.Notify(never, syscall.SIGUSR1)
		if err := os.WriteFile(filepath.Join(conf.Dir, "ready"), []byte("\n"), 0o600); err != nil {
			return types.NewError(types.ErrIOFailure, "fake", err.Error())
		}
		<-never
	}
	if command == "ADD" {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"cniVersion": conf.CNIVersion})
	}
	return nil
}

// A Host is the environment in which the plugin runs: a node, whose directory has the fake's
// log.
type Host struct {
	nodetest.Node

	State string // directory for the plugin's records
	NetNS string // the path of a network namespace
}

// NewHost returns a host for the plugin of [Main].
func NewHost(t testing.TB) *Host {
	t.Helper()
	if program == "" {
		t.Fatal("TestMain of this package does not call programtest.Main")
	}
	h := &Host{Node: nodetest.Node{TB: t, Dir: t.TempDir()}}
	h.State, h.NetNS = h.Path("state"), newNetNS(t)
	self, err := os.Executable()
	nodetest.OK(t, errors.Join(err, os.Mkdir(h.Path("bin"), 0o700), os.Symlink(self, h.Path("bin", "fake")), syscall.Mkfifo(h.Path("ready"), 0o600)))
	return h
}

// Command returns a call of the plugin for the attachment eth0 of the container c1. Without
// a command it is one by hand.
func (h *Host) Command(command, stdin string) *exec.Cmd {
	h.Helper()
	self, err := os.Executable()
	nodetest.OK(h, err)
	cmd := exec.CommandContext(h.Context(), self)
	cmd.Args[0] = program
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{
		"GOCOVERDIR=" + h.Dir, "GORACE=atexit_sleep_ms=0", // for a test binary with coverage or the race detector
		"CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + h.NetNS, "CNI_PATH=" + h.Path("bin"),
	}
	if command != "" {
		cmd.Env = append(cmd.Env, "CNI_COMMAND="+command)
	}
	return cmd
}

// Run runs the plugin and returns what it prints.
func (h *Host) Run(command, stdin string) (stdout []byte, stderr string, status int) {
	h.Helper()
	var out, errs bytes.Buffer
	cmd := h.Command(command, stdin)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		h.Fatalf("%s: %v", command, err)
	}
	return out.Bytes(), errs.String(), cmd.ProcessState.ExitCode()
}

// Ready calls start, which starts the plugin, and waits until the fake hangs.
func (h *Host) Ready(start func() error) {
	h.Helper()
	ready := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(h.Path("ready"))
		ready <- err
	}()
	nodetest.OK(h, start())
	nodetest.OK(h, nodetest.Come(h, ready, "the call of the fake that hangs"))
}

// Calls returns the calls of the fake.
func (h *Host) Calls() []string {
	h.Helper()
	log, err := os.ReadFile(h.Path("log"))
	if !errors.Is(err, fs.ErrNotExist) {
		nodetest.OK(h, err)
	}
	return strings.FieldsFunc(string(log), func(r rune) bool { return r == '\n' })
}

// An Answer is the JSON document that a plugin prints when it fails.
type Answer struct {
	CNIVersion string `json:"cniVersion"`
	types.Error
}

// Said decodes the only JSON document that a plugin has printed.
func (h *Host) Said(stdout []byte) (said Answer) {
	h.Helper()
	if err := json.Unmarshal(stdout, &said); err != nil {
		h.Fatalf("not an error: %q: %v", stdout, err)
	}
	return said
}

// holder is the name of the process that holds the network namespace of a container.
const holder = "holder"

// newNetNS returns the path of a new network namespace, which ends with the test. It skips the test
// where an ordinary user cannot make one.
func newNetNS(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args[0] = holder
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	stdin, err := cmd.StdinPipe()
	nodetest.OK(t, err)
	if err := cmd.Start(); err != nil {
		t.Skipf("needs root, or a kernel that gives user namespaces to ordinary users: %v", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // the context has killed it
	})
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}
