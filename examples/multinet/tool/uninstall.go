package tool

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

// An uninstaller is the command uninstall.
type uninstaller struct {
	*site

	dir, multusDir        string
	detach, leave, binary bool
	cacheDirs             []string
}

func (t *tool) uninstall(flags *flag.FlagSet) runner {
	u := &uninstaller{site: t.site(flags)}
	flags.BoolVar(&u.binary, "binary", false, "also remove the program")
	flags.StringVar(&u.dir, "dir", "", "state `directory` of the plugin [the published one]")
	flags.StringVar(&u.name, "name", "", "`name` of the network [the published one]")
	flags.BoolVar(&u.detach, "detach", false, "detach all networks but the first of each container")
	flags.BoolVar(&u.leave, "leave", false, "leave containers attached, for a later install")
	flags.Func("cache-dir", "cache `directory` of libcni; may be repeated ["+multinet.DefaultCacheDir+"]", func(dir string) error {
		u.cacheDirs = append(u.cacheDirs, dir)
		return nil
	})
	flags.StringVar(&u.multusDir, "multus-dir", "", "state `directory` of Multus, to give containers back to it")
	return func(ctx context.Context, _ []string) error { return u.changed(u.remove(ctx)) }
}

// check fails if the flags contradict each other, or if a directory does not exist to which
// containers are given back: in a directory that nobody reads they would be forgotten. The
// usual ones may be missing.
func (u *uninstaller) check() error {
	errs := []error{plainName("type", u.typ), u.resolve()}
	if u.detach && (u.leave || u.binDir == "") {
		errs = append(errs, errors.New("--detach goes neither with --leave nor without plugins in --bin-dir"))
	}
	for i, dir := range append([]string{u.multusDir}, u.cacheDirs...) {
		name, usual := "cache-dir", multinet.DefaultCacheDir
		if i == 0 {
			name, usual = "multus-dir", multinet.DefaultMultusDir
		}
		if !filepath.IsAbs(dir) && (i > 0 || dir != "") {
			errs = append(errs, fmt.Errorf("--%s %s: not an absolute path", name, dir))
		}
		errs = append(errs, existing(name, dir, usual))
	}
	if u.detach {
		errs = append(errs, existing("conf-dir", u.confDir, publish.ConfDir))
	}
	return errors.Join(errs...)
}

// remove removes the published network and, as the flags say, attachments and the
// program.
func (u *uninstaller) remove(ctx context.Context) error {
	invalid := u.check()
	m, err := publisher(u.confDir, u.output, u.typ)
	if err := cmp.Or(invalid, err); err != nil {
		return err
	}
	m.OwnTypes = nil // do not remove networks of other types
	life, name, err := u.manager(ctx, m)
	if err != nil {
		return err
	}
	attached, err := attachedTo(ctx, life, name)
	if !u.detach && !u.leave && (len(attached) > 0 || err != nil) {
		return errors.Join(err, fmt.Errorf(`%s: nothing has been changed; use --detach to detach all networks except the cluster network, or --leave to leave them attached`, count(life, attached)))
	}
	if u.detach {
		if err := u.unpublished(name, len(attached) > 0); err != nil {
			return fmt.Errorf("nothing has been changed: %w", err)
		}
	}
	left, err := u.removing(func() error { return publish.Uninstall(ctx, m) }, m.Output+".conf", m.Output+".conflist")
	if err != nil {
		return err
	}
	for _, path := range left {
		u.say("%q is not of type %q and stays", path, u.typ)
	}
	if u.detach {
		if err := u.release(ctx, life, name); err != nil {
			return err
		}
	}
	if !u.binary || u.binDir == "" {
		return nil
	}
	program := filepath.Join(u.binDir, u.typ)
	_, err = u.removing(func() error { return publish.RemoveProgram(program) }, program)
	return err
}

// removing calls do, notes which of the files at paths it has removed, and returns the others.
func (u *uninstaller) removing(do func() error, paths ...string) (left []string, err error) {
	missing := func(path string) bool { _, err := os.Lstat(path); return err != nil }
	there := slices.DeleteFunc(paths, missing)
	err = do()
	for _, path := range there {
		if missing(path) {
			u.changes = append(u.changes, changeView{Path: path, Outcome: "removed"})
		} else {
			left = append(left, path)
		}
	}
	return left, err
}

// manager returns the Manager of the records, and the name of the network that has them.
// It fails if --name or --dir differs from the published network and containers would be
// forgotten.
func (u *uninstaller) manager(ctx context.Context, m *autoconf.Manager) (*lifecycle.Manager, string, error) {
	name, dir := ours(m)
	if _, ok := publish.Published(m); ok {
		if u.name != "" && u.name != name {
			return nil, "", fmt.Errorf("the published network has the name %q: leave out --name %s", name, u.name)
		}
		if kept, _ := attachedTo(ctx, &lifecycle.Manager{Dir: dir}, name); u.dir != "" && len(kept) > 0 && !plugin.Root("").SameFile(dir, u.dir) {
			return nil, "", fmt.Errorf("the published network has its records in %s: leave out --dir %s", dir, u.dir)
		}
	}
	return u.process.NewManager(cmp.Or(u.dir, dir), u.typ, []string{u.binDir}), cmp.Or(u.name, name), nil
}

// unpublished fails if the network name would stay published, because of a wrong or
// forgotten flag: the plugin would go on to receive the DELs of containers that it has
// given back. If there are such containers, the directory must have a network for them.
func (u *uninstaller) unpublished(name string, attached bool) error {
	found := false
	for f, err := range netconf.Files(os.DirFS(u.confDir)) {
		if f.Name == "" {
			break // it cannot be listed
		}
		found = true
		ext := filepath.Ext(f.Name)
		atOutput := f.Name == u.output+ext && ext != ".json"
		runs := func(types ...string) bool {
			return slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return slices.Contains(types, p.Type()) })
		}
		ours := atOutput || f.Network.Name() == name && runs("multinet", "multinet-shim", u.typ)
		if err == nil && ours && (!atOutput || !runs(u.typ)) {
			return fmt.Errorf("%s would stay: --output must be its name, and --type must be the type in it, %q",
				filepath.Join(u.confDir, f.Name), f.Network.Plugins()[0].Type())
		}
	}
	if attached && !found {
		return fmt.Errorf("there is no network in %s: --conf-dir must be the runtime's directory", u.confDir)
	}
	return nil
}

// release gives each container of the network name back to the runtime, also those
// that are added meanwhile: it goes on until no ADD runs. It may be repeated.
func (u *uninstaller) release(ctx context.Context, life *lifecycle.Manager, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	dirs := u.cacheDirs
	if dirs == nil {
		dirs = []string{multinet.DefaultCacheDir}
	}
	keep := adopt.GiveBack(u.multusDir, dirs...)
	tried := make(map[scratch.Key]bool)
	var left []lifecycle.AddRecord
	var errs []error
	attached, err := attachedTo(ctx, life, name)
	first := len(attached)
	for begun := true; begun || len(attached) > 0; {
		for _, r := range attached {
			tried[r.Key] = true
			v := sweptView{keyView: viewKey(r.Key), Removed: true}
			if err := life.Release(ctx, r.Key, keep); err != nil {
				left, errs = append(left, r), append(errs, err)
				v.Removed, v.Error = false, err.Error()
			}
			u.changes = append(u.changes, v)
		}
		if begun = u.adding(); begun && !program.Pause(ctx, 50*time.Millisecond) {
			begun = false
			errs = append(errs, fmt.Errorf("an ADD still runs: %w", ctx.Err()))
		}
		attached, err = attachedTo(ctx, life, name) // after looking for ADDs: none may end in between
		attached = slices.DeleteFunc(attached, func(r lifecycle.AddRecord) bool { return tried[r.Key] })
	}
	u.say("%d attachments were given back to the runtime, or removed", len(tried)-len(left))
	if came := len(tried) - first; came > 0 {
		u.say("%d attachments came while uninstall worked", came)
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		err = fmt.Errorf("%w\n%s: run uninstall again with --dir %s --name %s --bin-dir %s", err, count(life, left), life.Dir, name, u.binDir)
	}
	return err
}

// adding reports whether the program runs an ADD: that may not have recorded anything yet. Processes of
// others cannot be looked at without the rights to.
func (u *uninstaller) adding() bool {
	program, err := os.Stat(filepath.Join(u.binDir, u.typ))
	if err != nil {
		return false
	}
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	return slices.ContainsFunc(processes, func(dir string) bool {
		runs, err := os.Stat(dir + "/exe")
		if err != nil || !os.SameFile(runs, program) {
			return false
		}
		env, _ := os.ReadFile(dir + "/environ") // it has ended, or has nothing
		return slices.Contains(strings.Split(string(env), "\x00"), "CNI_COMMAND=ADD")
	})
}

// attachedTo returns the records of the network name, and the errors of records that
// cannot be read.
func attachedTo(ctx context.Context, life *lifecycle.Manager, name string) ([]lifecycle.AddRecord, error) {
	return (&tool{life: life}).records(ctx, func(r lifecycle.AddRecord) bool { return attachments(r) && r.Key.Network == name })
}

// count says how many containers of rs are attached, and of how many that are dead, or whose DEL
// could not remove everything, something is left.
func count(life *lifecycle.Manager, rs []lifecycle.AddRecord) string {
	there, left := make(map[string]bool), make(map[string]bool)
	for i, j := range life.Judge(rs) {
		r := rs[i]
		if ended := !r.State.Attached() && r.State != scratch.Planned; ended || j.Life == lifecycle.Dead {
			left[r.Key.ContainerID] = true
		} else {
			there[r.Key.ContainerID] = true
		}
	}
	are := func(containers map[string]bool, what string) string {
		if len(containers) == 1 {
			return "1 container is " + what
		}
		return fmt.Sprintf("%d containers are %s", len(containers), what)
	}
	text := are(there, "still attached")
	if len(left) > 0 {
		text += ", " + are(left, "gone but not completely detached (see multinet gc)")
	}
	return text
}
