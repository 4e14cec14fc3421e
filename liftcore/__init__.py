"""liftcore: JAX transformations inside stateful models."""
from liftcore.entry import apply, bind, init, lazy_init
from liftcore.pack import pack, Captured
from liftcore.lift.vmap import vmap
from liftcore.lift.remat import remat
from liftcore.lift.scan import scan
from liftcore.lift.jit import jit
from liftcore.lift.axes import broadcast, In, Out, InOut
