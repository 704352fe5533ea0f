// Fake is a CNI plugin that attaches nothing. It writes down how it was
// called, keeps a marker for what a real plugin would have made, and fails as
// its configuration says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// config is what the fake reads of its configuration.
type config struct {
	CNIVersion string            `json:"cniVersion"`
	ID         string            `json:"id"`   // tells one fake from another
	Dir        string            `json:"dir"`  // where log and markers are
	On         map[string]string `json:"on"`   // command: what goes wrong
	Code       uint              `json:"code"` // of "fail"
	Valid      json.RawMessage   `json:"cni.dev/valid-attachments"`
	PrevResult json.RawMessage   `json:"prevResult"`
}

func main() {
	var conf config
	stdin := json.RawMessage{}
	if err := json.NewDecoder(os.Stdin).Decode(&stdin); err != nil {
		fail(conf, 6, "stdin: "+err.Error())
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		fail(conf, 6, err.Error())
	}
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		return
	}
	if err := run(conf, command, stdin); err != nil {
		fail(conf, 5, err.Error())
	}
}

func run(conf config, command string, stdin json.RawMessage) error {
	marker := filepath.Join(conf.Dir, "live", strings.Join([]string{conf.ID, os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME")}, "@"))
	if err := log(conf, command, stdin); err != nil {
		return err
	}
	// What goes wrong in an ADD does so when the plugin has done its work, in
	// a DEL before.
	if command == "ADD" {
		if err := os.WriteFile(marker, nil, 0o600); err != nil {
			return err
		}
	}
	if err := misbehave(conf, command); err != nil {
		return err
	}
	switch command {
	case "ADD":
		return result(conf)
	case "DEL":
		if err := os.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case "CHECK":
		if _, err := os.Stat(marker); err != nil {
			fail(conf, 100, "not attached")
		}
	}
	return nil
}

// log appends one line to the log: see call in the tests.
func log(conf config, command string, stdin json.RawMessage) error {
	line, err := json.Marshal(map[string]any{
		"command": command, "id": conf.ID, "pid": os.Getpid(),
		"container": os.Getenv("CNI_CONTAINERID"), "ifname": os.Getenv("CNI_IFNAME"),
		"netns": os.Getenv("CNI_NETNS"), "args": os.Getenv("CNI_ARGS"), "stdin": stdin,
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(conf.Dir, "log"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Write(append(line, '\n'))
	return err
}

// misbehave does what conf.On has for command. The files ready and gate are
// FIFOs: the test reads the first and writes the second.
func misbehave(conf config, command string) error {
	switch on := conf.On[command]; on {
	case "":
	case "fail":
		fail(conf, conf.Code, "no free device")
	case "hang", "deaf", "gate":
		if on == "deaf" {
			signal.Ignore(syscall.SIGTERM)
		}
		if err := tell(filepath.Join(conf.Dir, "ready")); err != nil {
			return err
		}
		if on == "gate" {
			return wait(filepath.Join(conf.Dir, "gate"))
		}
		for {
			_ = syscall.Pause()
		}
	case "child": // that holds the pipes
		child := exec.CommandContext(context.Background(), "/proc/self/exe")
		child.Env = []string{"CNI_COMMAND=NONE"}
		in, err := child.StdinPipe()
		if err != nil {
			return err
		}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"dir": conf.Dir, "id": conf.ID + "-child", "on": map[string]string{"NONE": "hang"}})
		if err != nil {
			return err
		}
		if _, err := in.Write(body); err != nil {
			return err
		}
		return in.Close()
	case "noise":
		fmt.Println("warning: this is not JSON")
	case "garbage":
		fmt.Println(`{"cniVersion":"1.0.0","ips":"none"}`)
		os.Exit(0)
	case "silence":
		os.Exit(0)
	default:
		return fmt.Errorf("unknown fault %q", on)
	}
	return nil
}

func tell(fifo string) error {
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.WriteString("x")
	return err
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

// result answers an ADD: what came before, or one interface with one address.
func result(conf config) error {
	if len(conf.PrevResult) > 0 {
		_, err := fmt.Println(string(conf.PrevResult))
		return err
	}
	ip := map[string]any{"address": "192.0.2.2/24", "gateway": "192.0.2.1", "interface": 0}
	if strings.HasPrefix(conf.CNIVersion, "0.") {
		ip["version"] = "4"
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"cniVersion": conf.CNIVersion,
		"interfaces": []any{map[string]any{"name": os.Getenv("CNI_IFNAME"), "sandbox": os.Getenv("CNI_NETNS")}},
		"ips":        []any{ip},
	})
}

func fail(conf config, code uint, msg string) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": conf.CNIVersion, "code": code, "msg": msg, "details": "fake " + conf.ID})
	os.Exit(1)
}
