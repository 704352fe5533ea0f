//go:build unix

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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/nodetest"
)

// names are the names that Main acts on. A test binary that is called with another name
// would run its tests again, which would run the binary, and so on.
var names []string //nolint:gochecknoglobals // set once, by TestMain

// Main is the TestMain of the example plugin with that name and main function.
func Main(m *testing.M, name string, main func()) {
	names = []string{name, "fake"}
	switch filepath.Base(os.Args[0]) {
	case name:
		main()
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
// 107, print a "large" result, or "hang" after it has written to the FIFO "ready".
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
	fmt.Fprintln(log, strings.TrimSpace(command+" "+os.Getenv("CNI_IFNAME")))
	switch conf.On[command] {
	case "fail":
		return types.NewError(107, "no free device", "")
	case "hang":
		never := make(chan os.Signal, 1)
		signal.Notify(never, syscall.SIGUSR1)
		ready, err := os.OpenFile(filepath.Join(conf.Dir, "ready"), os.O_WRONLY, 0)
		if err != nil {
			return types.NewError(types.ErrIOFailure, "fake", err.Error())
		}
		fmt.Fprintln(ready)
		<-never
	}
	if command == "ADD" {
		result := map[string]string{"cniVersion": conf.CNIVersion}
		if conf.On[command] == "large" {
			result["padding"] = strings.Repeat("x", 1<<18)
		}
		_ = json.NewEncoder(os.Stdout).Encode(result)
	}
	return nil
}

// A Host is the environment in which the plugin runs.
type Host struct {
	Dir   string // has the fake's log, and may have files of the test
	State string // directory for the plugin's records
	NetNS string // the path of an empty file

	t    testing.TB
	name string
	bin  string
}

// NewHost returns a host for the plugin with the name given to [Main].
func NewHost(t testing.TB, name string) *Host {
	t.Helper()
	if !slices.Contains(names, name) {
		t.Fatalf("TestMain of this package does not call programtest.Main for %q", name)
	}
	dir := t.TempDir()
	h := &Host{Dir: dir, State: filepath.Join(dir, "state"), NetNS: filepath.Join(dir, "netns"), t: t, name: name, bin: filepath.Join(dir, "bin")}
	self, err := os.Executable()
	nodetest.OK(t, errors.Join(err, os.Mkdir(h.bin, 0o700), os.Symlink(self, filepath.Join(h.bin, "fake")),
		os.WriteFile(h.NetNS, nil, 0o600), syscall.Mkfifo(filepath.Join(dir, "ready"), 0o600)))
	return h
}

// Command returns a call of the plugin for the attachment eth0 of the container c1. env has
// more variables: if one is set twice, the last one counts. An empty one is removed.
func (h *Host) Command(command, stdin string, env ...string) *exec.Cmd {
	h.t.Helper()
	self, err := os.Executable()
	nodetest.OK(h.t, err)
	cmd := exec.CommandContext(h.t.Context(), self)
	cmd.Args[0] = h.name
	cmd.Stdin = strings.NewReader(stdin)
	for _, kv := range append([]string{
		"GOCOVERDIR=" + h.Dir, "GORACE=atexit_sleep_ms=0", // for a test binary with coverage or the race detector
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + h.NetNS, "CNI_PATH=" + h.bin,
	}, env...) {
		if _, value, _ := strings.Cut(kv, "="); value != "" {
			cmd.Env = append(cmd.Env, kv)
			continue
		}
		for i, before := range cmd.Env {
			if strings.HasPrefix(before, kv) {
				cmd.Env = append(cmd.Env[:i], cmd.Env[i+1:]...)
				break
			}
		}
	}
	return cmd
}

// Run runs the plugin and returns what it prints.
func (h *Host) Run(command, stdin string, env ...string) (stdout []byte, stderr string, status int) {
	h.t.Helper()
	var out, errs bytes.Buffer
	cmd := h.Command(command, stdin, env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%s: %v", command, err)
	}
	return out.Bytes(), errs.String(), cmd.ProcessState.ExitCode()
}

// Ready calls start, which starts the plugin, and waits until the fake hangs.
func (h *Host) Ready(start func() error) {
	h.t.Helper()
	// Opened for writing as well, so that reading does not end.
	ready, err := os.OpenFile(filepath.Join(h.Dir, "ready"), os.O_RDWR, 0)
	nodetest.OK(h.t, err)
	defer func() { _ = ready.Close() }()
	nodetest.OK(h.t, start())
	err = ready.SetReadDeadline(time.Now().Add(time.Minute)) // if the fake never runs
	if err == nil {
		_, err = ready.Read(make([]byte, 1))
	}
	if err != nil {
		h.t.Fatalf("the fake does not hang: %v", err)
	}
}

// Log returns the calls of the fake.
func (h *Host) Log() []string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, "log"))
	if !errors.Is(err, fs.ErrNotExist) {
		nodetest.OK(h.t, err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// Said decodes the JSON document that a plugin prints when it fails.
func (h *Host) Said(stdout []byte) (cniVersion string, said types.Error) {
	h.t.Helper()
	d := json.NewDecoder(bytes.NewReader(stdout))
	var document json.RawMessage
	if err := d.Decode(&document); err != nil {
		h.t.Fatalf("not an error: %q: %v", stdout, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		h.t.Fatalf("more than one document: %q", stdout)
	}
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := errors.Join(json.Unmarshal(document, &v), json.Unmarshal(document, &said)); err != nil {
		h.t.Fatalf("not an error: %q: %v", stdout, err)
	}
	return v.CNIVersion, said
}

// Files lists the files below dir, except directories.
func Files(t testing.TB, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path, err = filepath.Rel(dir, path)
			files = append(files, path)
		}
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		nodetest.OK(t, err)
	}
	return files
}
