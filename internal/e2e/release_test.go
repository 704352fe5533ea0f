package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const sdk = "github.com/metacni/metacni"

// published returns the directories of the modules that a release tags.
func published() ([]string, error) {
	nested, err := filepath.Glob("../../delegate/*/go.mod")
	dirs := []string{"."}
	for _, file := range nested {
		dirs = append(dirs, "delegate/"+filepath.Base(filepath.Dir(file)))
	}
	return dirs, err
}

// released returns the version that the published modules require of one another.
func released() (string, error) {
	text, err := os.ReadFile("../../delegate/kube/go.mod")
	if err != nil {
		return "", err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return "", err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == sdk {
			return r.Mod.Version, nil
		}
	}
	return "", errors.New("delegate/kube does not require the SDK")
}

// publish writes the published modules, as this checkout has them, to a directory that the go
// command can use as a proxy (https://go.dev/ref/mod#goproxy-protocol).
func publish(ctx context.Context, proxy string) error {
	version, err := released()
	if err != nil {
		return err
	}
	dirs, err := published()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		m := module.Version{Path: strings.TrimSuffix(sdk+"/"+dir, "/."), Version: version}
		source, at := filepath.Join("../..", dir), filepath.Join(proxy, m.Path, "@v")
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		file, err := os.Create(filepath.Join(at, version+".zip"))
		if err != nil {
			return err
		}
		mod, modErr := os.ReadFile(filepath.Join(source, "go.mod"))
		info, infoErr := json.Marshal(map[string]string{"Version": version, "Time": "2026-01-01T00:00:00Z"})
		if err := errors.Join(
			zip.CreateFromDir(file, m, source), file.Close(), modErr, infoErr,
			os.WriteFile(filepath.Join(at, version+".mod"), mod, 0o600),
			os.WriteFile(filepath.Join(at, version+".info"), info, 0o600),
			os.WriteFile(filepath.Join(at, "list"), []byte(version+"\n"), 0o600),
		); err != nil {
			return fmt.Errorf("publish %s: %w", m, err)
		}
		// The go command reads go.mod files for another module that it does not need for this one.
		cmd := exec.CommandContext(ctx, "go", "mod", "graph")
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("read the module graph of %s: %w\n%s", m.Path, err, out)
		}
	}
	return nil
}

// strangers returns the environment of the go command of somebody who has nothing of this
// repository: he gets the published modules as a proxy serves them, and those of others from the
// module cache of the machine.
func strangers(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOCACHE").Output()
	nodetest.OK(t, err)
	caches := strings.Fields(string(out))
	home := t.TempDir()
	return []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin",
		"GOMODCACHE=" + filepath.Join(home, "mod"), "GOCACHE=" + caches[1],
		"GOPROXY=file://" + built("proxy") + ",file://" + caches[0] + "/cache/download",
		"GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath -count=1", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0",
	}
}

// A stranger's module gets every public package at the version to be released, builds a program
// with it, and runs that. He installs conform.
func TestStrangersModuleImportsEachPackage(t *testing.T) {
	host.Need(t)
	t.Parallel()
	version, err := released()
	nodetest.OK(t, err)
	env, dir := strangers(t), t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = dir, append(env, "GOBIN="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("go", "mod", "init", "example.com/stranger")
	apis, err := filepath.Glob("../api/testdata/*.txt")
	nodetest.OK(t, err)
	ofPackage := regexp.MustCompile(`^package (\w+) // import "([^"]+)"`)
	exported := regexp.MustCompile(`(?m)^(?:type|func) (\w+)[ (]`)
	wants := map[string]string{} // part of what the program of a package prints
	for _, file := range apis {
		text, err := os.ReadFile(file)
		nodetest.OK(t, err)
		p, of := ofPackage.FindStringSubmatch(string(text)), exported.FindAllStringSubmatch(string(text), -1)
		if p == nil || p[1] == "main" {
			continue
		}
		if of == nil {
			t.Fatalf("%s exports nothing", p[2])
		}
		last := of[len(of)-1] // types come after functions
		use, want := "(*"+p[1]+"."+last[1]+")(nil)", "*"+p[1]+"."
		if strings.HasPrefix(last[0], "func") {
			use, want = p[1]+"."+last[1], "func("
		}
		name := strings.NewReplacer("/", "-", ".", "-").Replace(p[2])
		nodetest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name, "main.go"), fmt.Appendf(nil,
			"package main\n\nimport (\n\t\"fmt\"\n\n\t%q\n)\n\nfunc main() { fmt.Printf(\"%%T\", %s) }\n", p[2], use), 0o600))
		wants[name] = want
	}
	if len(wants) < 20 {
		t.Fatalf("only %d packages", len(wants))
	}
	dirs, err := published()
	nodetest.OK(t, err)
	for _, m := range dirs {
		run("go", "get", strings.TrimSuffix(sdk+"/"+m, "/.")+"@"+version)
	}
	run("go", "mod", "tidy")
	nodetest.OK(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	run("go", "build", "-o", "bin/", "./...")
	for name, want := range wants {
		nodetest.Contains(t, name, run(filepath.Join(dir, "bin", name)), want)
	}

	run("go", "install", sdk+"/delegate/conform/cmd/conform@"+version)
	nodetest.Contains(t, "conform", run(filepath.Join(dir, "conform"), "-list"), "del-again")
	cmd := exec.CommandContext(t.Context(), "go", "get", sdk+"@v0.1.9")
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "v0.1.9") {
		t.Errorf("a version that does not exist: %v\n%s", err, out)
	}
}
