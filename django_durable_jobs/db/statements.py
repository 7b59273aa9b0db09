"""The statements of enqueue, claim and settlement, in SQL that every database understands.

Two vendors say some of it better in their own way: ``postgresql`` and ``mysql``. Lock order
everywhere: namespace, queue entry, execution, job; a turn settles before it locks the namespace.
"""

from .enqueueing import EnqueueStatements
from .leading import LeadStatements
from .pruning import PruneStatements
from .reading import ReadStatements
from .repairing import RepairStatements
from .standing import StandingStatements
from .ticking import TickStatements
from .updating import UpdateStatements


class Statements(
    ReadStatements,
    StandingStatements,
    EnqueueStatements,
    RepairStatements,
    PruneStatements,
    TickStatements,
    LeadStatements,
    UpdateStatements,
):
    """The statements for one connection; SQLite runs them as they stand here."""
