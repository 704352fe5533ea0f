package resident_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/internal/nodetest"
)

// roleVar gives the executable of this test a role.
const roleVar = "METACNI_RESIDENT_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv("CNI_RELAY_SOCKET") != "" {
		os.Exit(playLaunched())
	}
	if socket, ok := strings.CutPrefix(os.Getenv(roleVar), "dial "); ok {
		os.Exit(playDial(socket))
	}
	os.Exit(m.Run())
}

// playLaunched is a launched resident whose name says how it behaves.
func playLaunched() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, index, name, err := resident.Inherited(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Fprintln(os.Stderr, name, "was launched")
	d := with(index, name, func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		switch c.ContainerID {
		case "die":
			os.Exit(4)
		case "leave-connection": // dies, but its child keeps the connection
			f, err := conn.(*net.UnixConn).File()
			if err != nil || startSleep(&exec.Cmd{ExtraFiles: []*os.File{f}}) != nil {
				os.Exit(7)
			}
			os.Exit(4)
		case "leave-stderr": // dies, but its child, in another session, keeps stderr
			if startSleep(&exec.Cmd{Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}) != nil {
				os.Exit(7)
			}
			os.Exit(4)
		case "self":
			return json.Marshal(self())
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	})
	switch name {
	case "dies":
		return 5
	case "silent":
		<-ctx.Done()
		return 0
	case "liar":
		d.Name = "honest"
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		_ = d.Serve(context.Background(), conn)
		select {} // only SIGKILL ends it
	case "leaver", "deaf-leaver": // has a child in another session
		if startSleep(&exec.Cmd{SysProcAttr: &syscall.SysProcAttr{Setsid: true}}) != nil {
			return 6
		}
		if name == "deaf-leaver" {
			signal.Ignore(syscall.SIGTERM)
			_ = d.Serve(context.Background(), conn)
			select {}
		}
	case "parent":
		// A child that ignores the end of its parent.
		if startSleep(&exec.Cmd{}) != nil {
			return 6
		}
	}
	if err := d.Serve(ctx, conn); err != nil && name != "liar" {
		<-ctx.Done() // its connection is closed before it is told to end
	}
	fmt.Fprintln(os.Stderr, name, "ends")
	return 0
}

// startSleep starts child, which sleeps, and prints its PID.
func startSleep(child *exec.Cmd) error {
	child.Path, child.Args = "/bin/sleep", []string{"sleep", "100"}
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
	return nil
}

// A process is what a launched resident sees of itself.
type process struct {
	Env, Files []string
	PID, Group int
	Dir        string
}

func self() process {
	dir, _ := os.Getwd()
	p := process{Env: os.Environ(), PID: os.Getpid(), Group: syscall.Getpgrp(), Dir: dir}
	slices.Sort(p.Env)
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		link, err := os.Readlink("/proc/self/fd/" + f.Name())
		kind, _, _ := strings.Cut(link, ":")
		// Other files belong to the Go runtime or were passed to the test.
		if err == nil && (kind == "socket" || f.Name() == "0" || f.Name() == "1" || f.Name() == "2") {
			p.Files = append(p.Files, kind)
		}
	}
	return p
}

// playDial registers and prints the answer.
func playDial(socket string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	fmt.Print(line)
	if err != nil {
		return 1
	}
	return 0
}

// executable makes name in dir a link to the executable of this test.
func executable(t testing.TB, dir, name string) {
	t.Helper()
	exe, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.Chmod(exe, 0o755)) // whatever the umask was when it was built
	nodetest.OK(t, os.Symlink(exe, filepath.Join(dir, name)))
}
