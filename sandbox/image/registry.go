//go:build linux

package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"sandgate/sandbox"
)

// Bounds on what a registry may send, and how long it may take to.
const (
	maxLayers     = 256
	maxConfig     = 8 << 20  // bytes of an image's configuration
	maxEnv        = 64 << 10 // bytes of the environment in it, as JSON
	downloads     = 3        // layers of an image at a time
	attempts      = 3        // to download one layer
	answerTimeout = 30 * time.Second
	stallTimeout  = time.Minute // without a byte
)

// errPlatform says that an image is for other machines only.
var errPlatform = errors.New("no image for linux/" + runtime.GOARCH)

// errStalled is why a download is given up.
var errStalled = fmt.Errorf("not a byte for %v", stallTimeout)

// A registryError is an error in the talk with a registry.
type registryError struct{ err error }

func (e *registryError) Error() string { return e.err.Error() }

func (e *registryError) Unwrap() error { return e.err }

// A source is our side of all registries.
type source struct{ transport *http.Transport }

func newSource() *source {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = answerTimeout
	t.DialContext = (&net.Dialer{Timeout: answerTimeout, Control: checkAddress}).DialContext
	return &source{t}
}

func (r *source) close() { r.transport.CloseIdleConnections() }

// checkAddress refuses link-local addresses, whatever name led there.
func checkAddress(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if ip := at.Addr().Unmap(); ip.IsLinkLocalUnicast() || ip.IsMulticast() {
		return fmt.Errorf("%s is a link-local address", ip)
	}
	return nil
}

// puller returns a client for one pull.
func (r *source) puller() (*remote.Puller, error) {
	return remote.NewPuller(
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(r.transport),
		remote.WithUserAgent("sandgate"),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Second / 2, Factor: 3, Jitter: 0.1, Steps: 3}),
	)
}

// A found is an image in a registry.
type found struct {
	puller *remote.Puller
	repo   name.Repository
	digest string // of its manifest, in hexadecimal
	layers []v1.Descriptor
	diffs  []v1.Hash // of the uncompressed layers
	config v1.Config
}

// find looks up what a reference means for this host.
func (r *source) find(ctx context.Context, ref name.Reference) (*found, error) {
	puller, err := r.puller()
	if err != nil {
		return nil, err
	}
	f := &found{puller: puller, repo: ref.Context()}
	desc, err := puller.Get(ctx, ref)
	if err != nil {
		return nil, &registryError{err}
	}
	if desc.MediaType.IsIndex() {
		at, err := choose(desc.Manifest)
		if err != nil {
			return nil, err
		}
		if desc, err = puller.Get(ctx, f.repo.Digest(at.String())); err != nil {
			return nil, &registryError{err}
		}
	}
	if !desc.MediaType.IsImage() {
		return nil, corrupt("it is of the kind %.100q", desc.MediaType)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(desc.Manifest))
	if err != nil {
		return nil, &corruptError{err}
	}
	if kind := manifest.Config.MediaType; kind != types.OCIConfigJSON && kind != types.DockerConfigJSON {
		return nil, corrupt("its configuration is of the kind %.100q", kind)
	}
	f.digest, f.layers = desc.Digest.Hex, manifest.Layers
	return f, f.readConfig(ctx, manifest.Config)
}

// choose returns the digest of the image for this host among those of an index.
func choose(index []byte) (v1.Hash, error) {
	parsed, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return v1.Hash{}, &corruptError{err}
	}
	for _, m := range parsed.Manifests {
		if p := m.Platform; p != nil && m.MediaType.IsImage() && fits(*p) {
			return m.Digest, nil
		}
	}
	return v1.Hash{}, errPlatform
}

// fits says whether all of this host's kind can run what is for p. A variant that
// only some have is passed by.
func fits(p v1.Platform) bool {
	if p.OS != "linux" || p.Architecture != runtime.GOARCH {
		return false
	}
	switch p.Variant {
	case "", "v1":
		return true
	case "v8":
		return p.Architecture == "arm64"
	}
	return false
}

// readConfig fetches an image's configuration.
func (f *found) readConfig(ctx context.Context, desc v1.Descriptor) error {
	if desc.Size > maxConfig {
		return corrupt("its configuration is too long")
	}
	var text bytes.Buffer
	if err := f.download(ctx, desc, &text, func(int64) {}); err != nil {
		return err
	}
	config, err := v1.ParseConfigFile(&text)
	if err != nil {
		return &corruptError{err}
	}
	if !fits(v1.Platform{OS: config.OS, Architecture: config.Architecture}) {
		return errPlatform
	}
	if n := len(f.layers); n > maxLayers || n != len(config.RootFS.DiffIDs) {
		return corrupt("%d layers, and content for %d", n, len(config.RootFS.DiffIDs))
	}
	config.Config.Env = slices.DeleteFunc(config.Config.Env, func(kv string) bool {
		name, _, ok := strings.Cut(kv, "=")
		return !ok || name == "" || strings.Contains(kv, "\x00")
	})
	env, err := json.Marshal(config.Config.Env)
	if err != nil {
		return err
	}
	command, err := json.Marshal([][]string{config.Config.Entrypoint, config.Config.Cmd})
	if err != nil {
		return err
	}
	if len(env)+len(command) > maxEnv || len(config.Config.User) > maxPath || len(config.Config.WorkingDir) > maxPath {
		return corrupt("its environment is too long")
	}
	f.config, f.diffs = config.Config, config.RootFS.DiffIDs
	return nil
}

// download writes a blob to w. It tells how many bytes have come so far.
func (f *found) download(ctx context.Context, desc v1.Descriptor, w io.Writer, tell func(int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	layer, err := f.puller.Layer(ctx, f.repo.Digest(desc.Digest.String()))
	if err != nil {
		return &registryError{err}
	}
	stall := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	defer stall.Stop()
	body, err := layer.Compressed()
	if err != nil {
		return &registryError{stalled(ctx, err)}
	}
	defer body.Close()
	sum := sha256.New()
	buf := make([]byte, 256<<10)
	for size := int64(0); ; {
		n, err := body.Read(buf)
		stall.Reset(stallTimeout)
		if size += int64(n); size > desc.Size {
			return corrupt("blob %s is longer than its manifest says", desc.Digest)
		}
		sum.Write(buf[:n])
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		tell(size)
		switch {
		case err == nil:
		case err != io.EOF && size < desc.Size:
			return &registryError{stalled(ctx, err)}
		case desc.Digest.Algorithm != "sha256" || hex.EncodeToString(sum.Sum(nil)) != desc.Digest.Hex:
			return corrupt("blob is not what its digest %s says", desc.Digest)
		default:
			return nil
		}
	}
}

// stalled is err, or why ctx ended if that is the reason for it.
func stalled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// fetch downloads the layers of an image, some at a time, and extracts each when
// those below it have been. dir is for what is needed meanwhile.
func (r *source) fetch(ctx context.Context, f *found, dir string, x *extractor, report func(sandbox.Progress)) error {
	size := int64(0)
	for _, l := range f.layers {
		if l.Size < 0 || l.Size > x.stream-size {
			return errTooBig
		}
		size += l.Size
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &parts{found: f, dir: dir, report: report, uses: make(map[v1.Hash]int), ready: make(map[v1.Hash]chan error)}
	queue := make(chan v1.Descriptor, len(f.layers))
	for _, l := range f.layers {
		if p.uses[l.Digest]++; p.uses[l.Digest] == 1 {
			p.ready[l.Digest] = make(chan error, 1)
			report(sandbox.Progress{Layer: shortDigest(l.Digest), State: sandbox.LayerWaiting})
			queue <- l
		}
	}
	close(queue)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range downloads {
		wg.Go(func() {
			for l := range queue {
				p.ready[l.Digest] <- p.keep(ctx, l)
			}
		})
	}
	for i, l := range f.layers {
		if err := <-p.ready[l.Digest]; err != nil {
			return err
		}
		p.ready[l.Digest] <- nil // for when the image has the same layer again
		if err := p.extract(ctx, x, l, f.diffs[i]); err != nil {
			return fmt.Errorf("layer %s: %w", shortDigest(l.Digest), err)
		}
	}
	return nil
}

// parts are the layers of an image that is being pulled.
type parts struct {
	*found
	dir    string
	report func(sandbox.Progress)
	uses   map[v1.Hash]int        // how often each is still to be extracted
	ready  map[v1.Hash]chan error // how its download ended
}

func shortDigest(h v1.Hash) string { return h.Hex[:min(len(h.Hex), 12)] }

// blob is where a layer is between download and extraction.
func (p *parts) blob(h v1.Hash) string { return filepath.Join(p.dir, h.Hex) }

// keep downloads a layer to the disk, and tries again when that breaks off.
func (p *parts) keep(ctx context.Context, l v1.Descriptor) error {
	var err error
	for i := range attempts {
		if i > 0 {
			p.report(sandbox.Progress{Layer: shortDigest(l.Digest), State: sandbox.LayerRetrying})
			select {
			case <-time.After(time.Duration(i) * time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		err = p.keepOnce(ctx, l)
		if _, ok := errors.AsType[*registryError](err); !ok || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (p *parts) keepOnce(ctx context.Context, l v1.Descriptor) error {
	f, err := os.OpenFile(p.blob(l.Digest), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = p.download(ctx, l, f, func(size int64) {
		p.report(sandbox.Progress{Layer: shortDigest(l.Digest), State: sandbox.LayerDownloading, Done: size, Total: l.Size})
	})
	return errors.Join(err, f.Close())
}

// extract extracts a layer that was downloaded.
func (p *parts) extract(ctx context.Context, x *extractor, l v1.Descriptor, diff v1.Hash) error {
	f, err := os.Open(p.blob(l.Digest))
	if err != nil {
		return err
	}
	defer f.Close()
	plain, end, err := uncompressed(&reporter{r: f, ctx: ctx, report: func(done int64) {
		p.report(sandbox.Progress{Layer: shortDigest(l.Digest), State: sandbox.LayerExtracting, Done: done, Total: l.Size})
	}})
	if err != nil {
		return readFault(err)
	}
	defer end()
	content := &bounded{r: plain, left: &x.stream, sum: sha256.New()}
	if err := x.layer(content); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // what follows the archive counts too
		return readFault(err)
	}
	if diff.Algorithm != "sha256" || hex.EncodeToString(content.sum.Sum(nil)) != diff.Hex {
		return corrupt("content is not what its digest %s says", diff)
	}
	p.report(sandbox.Progress{Layer: shortDigest(l.Digest), State: sandbox.LayerReady, Done: l.Size, Total: l.Size})
	if p.uses[l.Digest]--; p.uses[l.Digest] == 0 {
		return os.Remove(p.blob(l.Digest))
	}
	return nil
}

// uncompressed returns what is in r, which may be compressed in the ways that
// layers are.
func uncompressed(r io.Reader) (plain io.Reader, end func(), err error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	start, _ := buffered.Peek(4)
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case bytes.Equal(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return buffered, func() {}, nil
}

// A reporter tells how much of r has been read, and ends with ctx.
type reporter struct {
	r      io.Reader
	ctx    context.Context
	report func(int64)
	done   int64
}

func (r *reporter) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(p)
	r.done += int64(n)
	r.report(r.done)
	return n, err
}

// A bounded is a reader with a limit that it shares with others, and a sum.
type bounded struct {
	r    io.Reader
	left *int64
	sum  hash.Hash
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if *b.left -= int64(n); *b.left < 0 {
		return 0, errTooBig
	}
	b.sum.Write(p[:n])
	return n, err
}
