package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

// misbehave commits the fault that conf.On has for command, unless there is a
// file "cured". The files ready and gate are FIFOs: the test reads the first
// and writes the second.
func misbehave(conf config, command string) error {
	if _, err := os.Stat(filepath.Join(conf.Dir, "cured")); err == nil {
		return nil
	}
	switch on := conf.On[command]; on {
	case "":
	case "fail":
		fail(conf, conf.Code, "no free device")
	case "late": // has waited before its work
	case "hang", "deaf", "gate":
		if on == "deaf" {
			signal.Ignore(syscall.SIGTERM)
		}
		if err := os.WriteFile(filepath.Join(conf.Dir, "ready"), []byte("x"), 0o600); err != nil {
			return err
		}
		if on == "gate" {
			return wait(filepath.Join(conf.Dir, "gate"))
		}
		pause()
	case "child": // a child holds the pipes
		return child(conf, &syscall.SysProcAttr{}, "hang")
	case "daemon": // the same, outside the plugin's process group
		return child(conf, &syscall.SysProcAttr{Setsid: true}, "hang")
	case "service": // the plugin hangs too
		if err := child(conf, &syscall.SysProcAttr{Setsid: true}, "hang"); err != nil {
			return err
		}
		pause()
	case "family": // the plugin and its child ignore SIGTERM
		signal.Ignore(syscall.SIGTERM)
		if err := child(conf, &syscall.SysProcAttr{}, "deaf"); err != nil {
			return err
		}
		pause()
	case "noise":
		fmt.Println("warning: this is not JSON")
	case "two":
		return result(conf) // a second one follows
	case "garbage":
		fmt.Println(`{"cniVersion":"1.0.0","ips":"none"}`)
		os.Exit(0)
	case "silence":
		os.Exit(0)
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		pause()
	case "flood":
		return flood(os.Stdout)
	case "flood stderr":
		return flood(os.Stderr)
	default:
		return fmt.Errorf("unknown fault %q", on)
	}
	return nil
}

// late waits for the gate, before the plugin has done its work.
func late(conf config) error {
	conf.On = map[string]string{"": "gate"}
	return misbehave(conf, "")
}

func pause() {
	for {
		_ = syscall.Pause()
	}
}

// child starts another fake, whose command is NONE and commits fault.
func child(conf config, attr *syscall.SysProcAttr, fault string) error {
	c := exec.CommandContext(context.Background(), "/proc/self/exe")
	c.Env, c.SysProcAttr = []string{"CNI_COMMAND=NONE"}, attr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"dir": conf.Dir, "id": conf.ID + "-child", "on": map[string]string{"NONE": fault}})
	if err != nil {
		return err
	}
	_, err = in.Write(body)
	return errors.Join(err, in.Close())
}

// flood writes 100 MB.
func flood(to *os.File) error {
	line := append(bytes.Repeat([]byte("x"), 1<<20-1), '\n')
	for range 100 {
		if _, err := to.Write(line); err != nil {
			return err
		}
	}
	return nil
}

func wait(fifo string) error {
	f, err := os.Open(fifo)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Read(make([]byte, 1))
	return err
}
